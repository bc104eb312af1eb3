"""Tasks and their results as bytes, with the tensors and arrays beside them.

One pickling finds every tensor, in containers, modules and other objects alike. joblib ships the
tensors and arrays themselves, so that it maps the large ones into memory as ever; no tensor that
travels requires grad.
"""

from __future__ import annotations

import functools
import io
import mmap
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.parallel.refusals import UnsupportedGradientError

try:
    from joblib.externals import cloudpickle
except ImportError:  # joblib 1.6 and newer depend on it
    import cloudpickle  # type: ignore[no-redef,unused-ignore]

_SPAN = 1 << 20
_PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type, range, slice, bytearray}
    | {types.BuiltinFunctionType, types.ModuleType}
)


class Leaf(NamedTuple):
    """What a tensor is, besides its numbers.

    Attributes:
        kind: its class.
        requires_grad, is_leaf: as for the tensor.
        dtype, size, stride: how its numbers lie; without a stride it travels as a tensor.
        attributes: those that the program has given it.
        inference: it was made under the inference mode.
    """

    kind: type
    requires_grad: bool
    is_leaf: bool
    dtype: Any = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] | None = None
    attributes: dict[str, Any] | None = None
    inference: bool = False


class Level(NamedTuple):
    """A backward pass over the results of a task, or over the gradients of the level before.

    Attributes:
        drawn: the random states before the task, where it has drawn numbers.
        threads: how many threads of torch's the first run had.
        digest: of the results.
        inputs: the arguments that the gradients are for, and how often each is used.
        cotangents: what was sent as gradients of the results, by number; None without one.
        modes: those of the backward pass.
        batched: the gradients of the results are many, along their first dimension.
    """

    drawn: Any
    threads: int
    digest: bytes
    inputs: Sequence[tuple[int, int]]
    cotangents: tuple[int | None, ...]
    modes: Any
    batched: bool


def pack(tensor: Any, *, copy: bool = False) -> tuple[Any, Leaf]:
    """A tensor without its graph, as what pickles best, and what it takes to rebuild it.

    Args:
        tensor: the tensor.
        copy: keep its values as they are now, and its memory free of exports.
    """
    import torch

    kind = type(tensor)
    leaf = Leaf(
        kind,
        tensor.requires_grad,
        tensor.is_leaf,
        attributes=tensor.__dict__ or None,
        inference=tensor.is_inference(),
    )
    value = tensor.detach()
    if (
        kind not in (torch.Tensor, torch.nn.Parameter)
        or value.layout is not torch.strided
        or value.device.type != "cpu"
        or value.is_quantized
        or value.is_conj()
        or value.is_neg()
        or "numpy" not in sys.modules
    ):
        return value.clone() if copy else value, leaf
    size, stride = tuple(value.shape), value.stride()
    pairs = list(zip(size, stride, strict=True))
    span = 1 + sum((n - 1) * step for n, step in pairs) if value.numel() else 0
    if span > max(2 * value.numel(), _SPAN // value.element_size()):
        value = value.contiguous()
        stride, span = value.stride(), value.numel()
    flat = value.as_strided((span,), (1,), value.storage_offset())
    if copy:
        flat = flat.clone()
    return flat.view(torch.uint8).numpy(), leaf._replace(
        dtype=value.dtype, size=size, stride=stride
    )


def unpack(payload: Any, leaf: Leaf, *, copy: bool = True) -> Any:
    """The values of a tensor that was packed, in memory of their own unless `copy` is false."""
    import torch

    if leaf.stride is None:
        return payload.clone() if copy else payload
    if not copy and len(payload):
        return torch.from_numpy(payload).view(leaf.dtype).as_strided(leaf.size, leaf.stride)
    value = torch.empty_strided(leaf.size, leaf.stride, dtype=leaf.dtype, device="cpu")
    span = len(payload) // value.element_size()
    value.as_strided((span,), (1,)).view(torch.uint8).numpy()[...] = payload
    return value


def rebuilt(payload: Any, leaf: Leaf) -> Any:
    """The tensor that was packed, but for its graph."""
    import torch

    if leaf.inference and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            return rebuilt(payload, leaf)
    value = unpack(payload, leaf)
    if leaf.kind is torch.nn.Parameter:
        value = torch.nn.Parameter(value, leaf.requires_grad)
    elif issubclass(leaf.kind, torch.nn.Parameter):
        value = torch.Tensor._make_subclass(leaf.kind, value, leaf.requires_grad)
    elif leaf.is_leaf and leaf.requires_grad:
        value.requires_grad_()
    if leaf.attributes:
        value.__dict__.update(leaf.attributes)
    return value


class Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles, and keeps tensors and larger arrays apart.

    Attributes:
        small_array: arrays of fewer bytes are not kept apart.
        found: the tensors and arrays, in the order in which they were met.
        modules: the modules of torch.
    """

    small_array = 0

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.found: list[Any] = []
        self.modules: list[Any] = []
        self._ids: dict[int, int] = {}
        self._seen_modules: set[int] = set()
        torch = sys.modules["torch"]
        self._kinds = torch.Tensor, torch.nn.Module
        self._arrays = tuple(_array_types())

    def persistent_id(self, item: Any) -> Any:
        kind = type(item)
        if kind in _PLAIN:
            return None
        if issubclass(kind, self._kinds[0]):
            return self.tensor(item)
        if kind in self._arrays:
            is_small = item.nbytes < self.small_array and item.base is None
            return None if item.dtype.hasobject or is_small else self.apart(item)
        if issubclass(kind, self._kinds[1]) and id(item) not in self._seen_modules:
            self._seen_modules.add(id(item))
            self.modules.append(item)
        return None

    def tensor(self, item: Any) -> Any:
        """What stands for a tensor in the pickle."""
        if (transform := _transformed(item)) is not None:
            raise UnsupportedGradientError(
                f"Parallel: a tensor inside {transform} cannot go to a worker process; use the "
                "transform inside the task."
            )
        return self.apart(item)

    def apart(self, item: Any) -> int:
        """Keep an object apart; the number under which it is kept."""
        index = self._ids.get(id(item))
        if index is None:
            index = self._ids[id(item)] = len(self.found)
            self.found.append(item)
        return index


def _array_types() -> Iterator[type]:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield from (numpy.ndarray, numpy.memmap)


def _transformed(tensor: Any) -> str | None:
    """What has a tensor differentiated, where that is not the graph."""
    torch = sys.modules["torch"]
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a `torch.func` transform (grad, vjp, jvp, vmap)"
    forward = torch.autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(tensor).tangent is not None:
        return "forward-mode AD"
    return None


class Unpacker(pickle.Unpickler):
    """The reverse of `Packer`."""

    def __init__(self, data: bytes, load: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.persistent_load = load  # type: ignore[method-assign]


def version(item: Any) -> int | None:
    """How often a tensor was changed in place, where torch counts that."""
    torch = sys.modules["torch"]
    if not isinstance(item, torch.Tensor) or item.is_inference():
        return None
    return int(item._version)


def references(item: Any) -> tuple[int, ...]:
    """How many references there are to an array, and to the owners of its memory."""
    counts = []
    while item is not None:
        counts.append(sys.getrefcount(item))
        item = getattr(item, "base", None)
    return tuple(counts)


def has_foreign_memory(item: Any) -> bool:
    """Whether others may write the memory of a tensor or an array, so that no version tells."""
    torch = sys.modules["torch"]
    if isinstance(item, torch.Tensor):
        if item.layout is not torch.strided or item.is_nested or item.device.type != "cpu":
            return False
        return not item.untyped_storage().resizable()
    mapped = sys.modules["numpy"].memmap, mmap.mmap
    while item is not None:
        if isinstance(item, mapped):
            return False
        item = getattr(item, "base", None)
    return True


def carried(function: Any) -> list[Any]:
    """What a callable takes along that the user gave to it: as good as an argument."""
    if isinstance(function, functools.partial):
        return [function.args, function.keywords, *carried(function.func)]
    if isinstance(function, types.MethodType):
        return [function.__self__]
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)):
        return []
    return [function]


class Spec(NamedTuple):
    """A task, without its tensors.

    Attributes:
        task: its number in the call.
        data: the arguments, the function and the modules among them.
        leaves: what is kept apart; None for an array.
        captured: the number from which on they are captured by the function, not arguments.
        modes: those of the caller.
        levels: the backward passes to run after the task.
        guess: the gradients of its results that are expected: "ones", packed tensors, or None.
    """

    task: int
    data: bytes
    leaves: tuple[Leaf | None, ...]
    captured: int
    modes: Any
    levels: tuple[Level, ...] = ()
    guess: Any = None


def pack_task(function: Any, args: Any, kwargs: Any) -> tuple[Packer, int]:
    """Pickle a task.

    Returns:
        The pickler, and how many of what it found are arguments.
    """
    packer = Packer()
    packer.dump((args, kwargs, carried(function)))
    arguments = len(packer.found)
    packer.dump(function)
    packer.dump(list(packer.modules))
    return packer, arguments


def holds_grad(item: Any, depth: int = 10) -> bool | None:
    """Whether something that requires grad is in `item`; None where it takes a pickling to know."""
    torch = sys.modules["torch"]
    kind = type(item)
    if kind in _PLAIN:
        return False
    if kind in _array_types():
        return None if item.dtype.hasobject else False
    if issubclass(kind, torch.Tensor):
        return bool(item.requires_grad) or _transformed(item) is not None
    if issubclass(kind, torch.nn.Module):
        if any(parameter.requires_grad for parameter in item.parameters()):
            return True
        return None
    if kind in (list, tuple, set, frozenset, dict) and depth:
        parts = [*item, *item.values()] if kind is dict else item
        answers = {holds_grad(part, depth - 1) for part in parts}
        return True if True in answers else (None if None in answers else False)
    numpy = sys.modules.get("numpy")
    atoms = (torch.dtype, torch.device, torch.Size, *([numpy.generic] if numpy else []))
    return False if issubclass(kind, atoms) else None


def grad_tensors(item: Any) -> list[Any]:
    """Every tensor in an object that requires grad; none where it cannot be pickled."""
    if holds_grad(item) is False:
        return []
    packer = Packer()
    try:
        packer.dump(item)
    except Exception:
        return []
    return [one for one in packer.found if getattr(one, "requires_grad", False)]
