"""PyTorch: tensors report their own pickling; questions about them, and leaves behind them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any

import torch

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.frameworks.torch import FRAMEWORK
from pytest_gradguard.runtime.kernel import locate, simulated_devices, transfer
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

_NUMPY = find_spec("numpy") is not None
_SPENT_LIMIT = 50
"""How many nodes of a graph are checked for being freed by a backward pass."""
_GRAPH_LIMIT = 5_000
"""How many nodes of a graph are inspected: torch frees those that Python has seen recursively, and
a very long chain of them would exhaust the stack."""


pickled: Subscribers[Callable[[Any], object]] = Subscribers()
"""Called with each tensor that the program itself pickles, or copies by `copy.copy`."""


def report_pickled(tensor: Any) -> None:
    """Report a tensor that the program itself pickles."""
    for listener in pickled.now:
        attempt(listener, tensor)


def _watched(original: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    active = transfer.active
    plain = torch.Tensor
    forward_mode = torch.autograd.forward_ad

    @functools.wraps(original)
    def __reduce_ex__(self: Any, proto: int) -> Any:
        current = active.transfer
        if current is None or active.busy:
            if current is None and pickled.now:
                report_pickled(self)
            return original(self, proto)
        if type(self) is plain and not self.requires_grad:  # most tensors, every parameter's data
            try:
                reduction = original(self, proto)
            except NotImplementedError:
                attempt(refused, current, self)
                raise
            if forward_mode._current_level >= 0:
                reduction = attempt(_with_tangent, current, self, reduction, instead=reduction)
            maybe = self.is_cuda or simulated_devices.device_of is not None
            if maybe and attempt(on_gpu, self):
                if self is not active.data:
                    return attempt(_on_gpu, current, self, reduction, instead=reduction)
                active.data = None
            return reduction
        # A tensor subclass passes here twice, because of its __torch_function__.
        active.busy = True
        try:
            reduction = original(self, proto)
        except NotImplementedError:
            attempt(refused, current, self)
            raise
        finally:
            active.busy = False
        if forward_mode._current_level >= 0:
            reduction = attempt(_with_tangent, current, self, reduction, instead=reduction)
        try:
            if requires_grad(self):
                if isinstance(self, torch.nn.Parameter):
                    current.parameter(self, FRAMEWORK)
                else:
                    reduction = current.tensor(self, reduction, FRAMEWORK)
            if on_gpu(self):
                return current.on_gpu(self, reduction, FRAMEWORK)
        except Exception as error:
            fault(error)
        return reduction

    return __reduce_ex__


def _watched_parameter(original: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Watch `nn.Parameter`, of which a model has very many."""
    active = transfer.active
    plain = torch.nn.Parameter

    @functools.wraps(original)
    def __reduce_ex__(self: Any, proto: int) -> Any:
        current = active.transfer
        if current is None:
            if pickled.now:
                report_pickled(self)
            return original(self, proto)
        known = type(self) is plain
        try:
            if self.requires_grad if known else requires_grad(self):
                if known and self._backward_hooks is self._post_accumulate_grad_hooks is None:
                    current.parameters.append((self, FRAMEWORK))
                else:
                    current.parameter(self, FRAMEWORK)
        except Exception as error:
            fault(error)
        reduction = original(self, proto)
        maybe = not known or self.is_cuda or simulated_devices.device_of is not None
        if maybe and attempt(on_gpu, self):
            reduction = attempt(_on_gpu, current, self, reduction, instead=reduction)
            active.data = attempt(_data_in, reduction)
        return reduction

    return __reduce_ex__


def refused(current: Any, tensor: Any) -> None:
    """Report a tensor that torch does not pickle to `current`, if a transform is the reason."""
    try:
        if torch._C._functorch.maybe_get_level(tensor) > 0:
            current.differentiated(tensor, None)
    except Exception as error:
        fault(error)


def _with_tangent(current: Any, tensor: Any, reduction: Any) -> Any:
    """The `reduction` of a tensor, with a note if forward mode gives it a tangent."""
    try:
        if has_tangent(tensor):
            return current.differentiated(tensor, reduction)
    except Exception as error:
        fault(error)
    return reduction


def has_tangent(tensor: Any) -> bool:
    """Whether forward mode, which is active, gives `tensor` a tangent."""
    level = torch.autograd.forward_ad._current_level
    return level >= 0 and torch._VF._unpack_dual(tensor, level=level)[1] is not None


def _data_in(reduction: Any) -> Any:
    """The tensor that pickling a parameter pickles; on a GPU, one and the same object."""
    arguments = reduction[1] if isinstance(reduction, tuple) else ()
    return next((one for one in arguments if isinstance(one, torch.Tensor)), None)


def _on_gpu(current: Any, tensor: Any, reduction: Any) -> Any:
    try:
        return current.on_gpu(tensor, reduction, FRAMEWORK)
    except Exception as error:
        fault(error)
        return reduction


def on_gpu(tensor: Any) -> bool:
    """Whether `tensor` is on a GPU, including a simulated one."""
    try:
        if _own(tensor, "is_cuda"):
            return True
        with torch._C.DisableTorchFunctionSubclass():
            return _pretended(tensor) is not None
    except Exception as error:
        fault(error)
        return False


def _pretended(tensor: Any) -> Any:
    """The simulated GPU of `tensor`; also works in threads outside of the simulation."""
    device_of = simulated_devices.device_of
    return None if device_of is None else device_of(tensor)


reductions = Patches(
    [
        Patch(torch.Tensor, "__reduce_ex__", _watched),
        Patch(torch.nn.Parameter, "__reduce_ex__", _watched_parameter),
    ]
)


def requires_grad(tensor: Any) -> bool:
    """`tensor.requires_grad`, read without running the code of a tensor subclass."""
    return bool(_own(tensor, "requires_grad"))


def _own(tensor: Any, name: str) -> Any:
    """An attribute of torch's, also if a subclass has a property of that name."""
    with torch._C.DisableTorchFunctionSubclass():
        return getattr(torch.Tensor, name).__get__(tensor)


def base_of(tensor: Any) -> Any:
    """The tensor that `tensor` is a view of, or `tensor` itself."""
    base = _own(tensor, "_base")
    return tensor if base is None else base


def hooks_of(tensor: Any) -> list[Any]:
    """The gradient hooks of a tensor, which are not pickled.

    Hooks with torch's mark for that are left out, and so are the guard's own.
    """
    with torch._C.DisableTorchFunctionSubclass():
        registered = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    return [
        hook
        for hooks in registered
        for hook in (hooks or {}).values()
        if not hasattr(hook, "__torch_unserializable__")
        and not (getattr(hook, "__module__", None) or "").startswith("pytest_gradguard.")
    ]


buried: list[Callable[[Any], bool]] = []
"""Each tells whether a tensor came back from a worker inside another object.

If that object goes to workers again, as fitted estimators do to predict, tensors kept from its
training go along, and nobody expects a gradient of them.
"""


def wanted(call: Any, tensor: Any) -> bool:
    """Whether a gradient may be expected of a tensor that requires grad.

    A `forward` or `backward` of the program's own computes its gradients itself.
    """
    return not call.within_autograd and not any(is_buried(tensor) for is_buried in buried)


def remade(roots: Iterable[tuple[str, Any]]) -> set[int]:
    """The ids of tensors that a hook of their module recomputes before each forward pass.

    `weight_norm`, `spectral_norm` and pruning recompute a weight from parameters that are sent as
    well.
    """
    found: set[int] = set()

    def look(item: Any) -> bool:
        if issubclass(type(item), torch.nn.Module):
            kept = dict(vars(item))
            hooks = list(kept.get("_forward_pre_hooks", {}).values())
            for name, value in kept.items() if hooks else ():
                if is_tensor(value) and any(_names(hook, name) for hook in hooks):
                    found.add(id(value))
        return False

    locate.find(roots, look)
    return found


def _names(hook: Any, attribute: str) -> bool:
    """Whether a hook, or an attribute of it, names that attribute of its module."""
    kept = getattr(hook, "__dict__", {}).values()
    if any(type(one) is str and one == attribute for one in kept):
        return True
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    return code is not None and (attribute in code.co_names or attribute in code.co_consts)


def spent(tensor: Any) -> bool:
    """Whether the history of `tensor` was used by a backward pass, and another would fail."""
    node = grad_fn(tensor)
    for current in () if node is None else _nodes(node, _SPENT_LIMIT):
        for name in _saved_by(type(current)):  # type: ignore[arg-type]
            try:
                getattr(current, name)
            except RuntimeError:  # freed, or changed in place since
                return True
    return False


@functools.cache
def _saved_by(node: type) -> tuple[str, ...]:
    """The attributes in which nodes of that class save tensors for a backward pass."""
    return tuple(n for n in dir(node) if n.startswith("_saved_") or n == "saved_tensors")


def grad_fn(tensor: Any) -> Any:
    """`tensor.grad_fn`, read without running the code of a tensor subclass."""
    return _own(tensor, "grad_fn")


history = grad_fn


def in_shared_memory(tensor: Any) -> bool:
    """Whether the values of `tensor` are in memory that other processes share.

    Torch reports that of every tensor on a GPU. There it is true of those sent to another process
    by torch's own pickling; every other pickler copies them.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_cuda:
            return bool(tensor.is_shared())
        reductions: Any = sys.modules.get("torch.multiprocessing.reductions")
        if reductions is None or tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()._cdata
        return any(one.cdata == storage for one in list(reductions.shared_cache.values()))


def readable(tensor: Any) -> bool:
    """Whether its values may be read without side effects.

    On a GPU, reading waits for all pending work: it fails while a graph is captured, and is
    reported if the program has asked torch for it.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_cuda:
            return True
        cuda = torch.cuda
        return not (cuda.get_sync_debug_mode() or cuda.is_current_stream_capturing())


def gradient(tensor: Any) -> Any:
    """The `.grad` of a leaf."""
    return _own(tensor, "grad")


def gradient_missing(tensor: Any) -> bool:
    """Whether a leaf has no `.grad`."""
    return gradient(tensor) is None


def is_tensor(item: Any) -> bool:
    """Whether `item` is a tensor of any class; its `__class__` is not asked."""
    return issubclass(type(item), torch.Tensor)


def find(roots: Iterable[tuple[str, Any]], *, deep: bool = True) -> dict[int, str]:
    """The paths of the tensors under `roots`."""
    return locate.find(roots, is_tensor, deep=deep)


def first_leaf(path: str, item: Any, limit: int) -> tuple[str, Any]:
    """The first leaf tensor that requires grad, and is no parameter, in plain containers.

    Args:
        path: the path of `item`.
        item: the object to search.
        limit: how many objects to search.

    Returns:
        Its path and itself, or an empty path and None.
    """
    found: list[Any] = []

    def wanted(one: Any) -> bool:
        if not is_tensor(one):
            return False
        if not isinstance(one, torch.nn.Parameter) and requires_grad(one) and not recorded(one):
            found.append(one)
        return True

    paths = locate.find([(path, item)], wanted, deep=False, limit=limit)
    return (paths[id(found[0])], found[0]) if found else ("", None)


def expects_gradients() -> bool:
    """Whether gradients are on in this thread."""
    return bool(torch.is_grad_enabled())


def describe(tensor: Any) -> Details:
    """Type, shape (a list of sizes), dtype and device of `tensor`, as plain values."""
    with torch._C.DisableTorchFunctionSubclass():
        kind = type(tensor)
        return {
            "framework": "torch",
            "type": kind.__name__ if kind.__module__ == "torch" else _qualified(kind),
            "shape": [int(size) for size in _own(tensor, "shape")],
            "dtype": str(_own(tensor, "dtype")).removeprefix("torch."),
            "device": str(_pretended(tensor) or _own(tensor, "device")),
        }


def _qualified(kind: type) -> str:
    if kind is torch.nn.Parameter:
        return "Parameter"
    return f"{kind.__module__}.{kind.__qualname__}"


def recorded(tensor: torch.Tensor) -> bool:
    """Whether `tensor` has a graph."""
    return history(tensor) is not None


def leaves(node: Any) -> Iterator[Any]:
    """The leaf tensors that require grad behind an autograd node, each once."""
    for current in nodes(node):
        variable = getattr(current, "variable", None)
        if variable is not None:
            yield variable


def leaves_of(outputs: Iterable[Any]) -> Iterator[Any]:
    """The leaf tensors that a backward pass from `outputs` may reach."""
    for output in outputs:
        node = getattr(output, "grad_fn", None) or getattr(output, "node", None)
        yield from leaves(node) if node is not None else (output,)


def nodes(node: Any) -> Iterator[Any]:
    """An autograd node and those behind it, each once; only the first of a very large graph."""
    return _nodes(node, _GRAPH_LIMIT)


def _nodes(node: Any, limit: int) -> Iterator[Any]:
    """An autograd node and those behind it, each once, until `limit` of them are known."""
    seen = {node}
    stack = [node]
    while stack and len(seen) < limit:
        current = stack.pop()
        yield current
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def fingerprint(tensor: Any, most: int) -> bytes | None:
    """Shape, dtype and up to about `most` of the values of `tensor`, as bytes.

    Returns:
        None if the values are not plain numbers in this process's memory.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
            return None
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            return None
        values = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        values = values[:: max(1, values.numel() // most)]
        about = f"{list(tensor.shape)}{tensor.dtype}".encode()
        try:
            plain = values.contiguous().view(torch.uint8)
            return about + (plain.numpy().tobytes() if _NUMPY else bytes(plain.tolist()))
        except (RuntimeError, TypeError, NotImplementedError):
            return None
