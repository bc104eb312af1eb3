"""Tasks and results as bytes, with their tensors and arrays apart.

One pickling finds every tensor, in containers, modules and other objects alike. joblib ships the
tensors and arrays themselves, so it still memory-maps the large ones; no tensor that travels
requires grad.
"""

from __future__ import annotations

import functools
import io
import mmap
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.parallel.refusals import UnsupportedGradientError

try:
    from joblib.externals import cloudpickle
except ImportError:  # joblib 1.6 and newer depend on it
    import cloudpickle  # type: ignore[no-redef,unused-ignore]

_MAX_GAPS = 1 << 20
"""Tensors that span more bytes are sent without their gaps."""
_ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type, range, slice, bytearray}
    | {types.BuiltinFunctionType, types.ModuleType}
)


class TensorInfo(NamedTuple):
    """What rebuilds a tensor from its values.

    Attributes:
        kind: its class.
        requires_grad, is_leaf: as for the tensor.
        dtype, size, stride: its layout; without a stride it travels as a tensor.
        attributes: those that the program has set.
        inference: it was made in inference mode.
    """

    kind: type
    requires_grad: bool
    is_leaf: bool
    dtype: Any = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] | None = None
    attributes: dict[str, Any] | None = None
    inference: bool = False


class BackwardPass(NamedTuple):
    """A backward pass through a task's results, or through the gradients of the previous pass.

    Attributes:
        drawn: the random states before the task, if it drew numbers.
        threads: torch's threads in the first run.
        digest: of the results.
        inputs: the arguments to differentiate by, with their numbers of uses.
        cotangents: the stored items that are gradients of the results; None without one.
        modes: those of the backward pass.
        batched: the gradients of the results have a batch dimension, their first.
    """

    drawn: Any
    threads: int
    digest: bytes
    inputs: Sequence[tuple[int, int]]
    cotangents: tuple[int | None, ...]
    modes: Any
    batched: bool


class TaskSpec(NamedTuple):
    """A task without its tensors and arrays.

    Attributes:
        task: its number in the call.
        data: the arguments, the function, and the modules among them.
        infos: of the stored items; None for an array.
        captured: the first stored item that the function captures, after the arguments.
        modes: those of the caller.
        passes: the backward passes to run after the task.
        guess: the predicted gradients of its results: "ones", packed tensors, or None.
    """

    task: int
    data: bytes
    infos: tuple[TensorInfo | None, ...]
    captured: int
    modes: Any
    passes: tuple[BackwardPass, ...] = ()
    guess: Any = None


def pack(tensor: Any, *, copy: bool = False) -> tuple[Any, TensorInfo]:
    """Separate a tensor's values from its info, without its graph.

    Args:
        tensor: the tensor.
        copy: copy the values, so that later changes do not show.
    """
    import torch

    kind = type(tensor)
    info = TensorInfo(
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
        return value.clone() if copy else value, info
    size, stride = tuple(value.shape), value.stride()
    pairs = list(zip(size, stride, strict=True))
    span = 1 + sum((n - 1) * step for n, step in pairs) if value.numel() else 0
    if span > max(2 * value.numel(), _MAX_GAPS // value.element_size()):
        value = value.contiguous()
        stride, span = value.stride(), value.numel()
    flat = value.as_strided((span,), (1,), value.storage_offset())
    if copy:
        flat = flat.clone()
    info = info._replace(dtype=value.dtype, size=size, stride=stride)
    return flat.view(torch.uint8).numpy(), info


def unpack(payload: Any, info: TensorInfo, *, copy: bool = True) -> Any:
    """The values of a packed tensor, by default in new memory."""
    import torch

    if info.stride is None:
        return payload.clone() if copy else payload
    if not copy and len(payload):
        return torch.from_numpy(payload).view(info.dtype).as_strided(info.size, info.stride)
    value = torch.empty_strided(info.size, info.stride, dtype=info.dtype, device="cpu")
    span = len(payload) // value.element_size()
    value.as_strided((span,), (1,)).view(torch.uint8).numpy()[...] = payload
    return value


def rebuild(payload: Any, info: TensorInfo) -> Any:
    """The packed tensor, without its graph."""
    import torch

    if info.inference and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            return rebuild(payload, info)
    value = unpack(payload, info)
    if info.kind is torch.nn.Parameter:
        value = torch.nn.Parameter(value, info.requires_grad)
    elif issubclass(info.kind, torch.nn.Parameter):
        value = torch.Tensor._make_subclass(info.kind, value, info.requires_grad)
    elif info.is_leaf and info.requires_grad:
        value.requires_grad_()
    if info.attributes:
        value.__dict__.update(info.attributes)
    return value


class Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """A pickler that stores tensors and larger arrays apart.

    Attributes:
        small_array: arrays of fewer bytes are pickled.
        stored: the tensors and arrays, in the order in which pickling met them.
        modules: the torch modules.
    """

    small_array = 0

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.stored: list[Any] = []
        self.modules: list[Any] = []
        self._ids: dict[int, int] = {}
        self._seen_modules: set[int] = set()
        torch = sys.modules["torch"]
        self._kinds = torch.Tensor, torch.nn.Module
        self._arrays = _array_types()

    def persistent_id(self, item: Any) -> Any:
        kind = type(item)
        if kind in _ATOMS:
            return None
        if issubclass(kind, self._kinds[0]):
            return self.store_tensor(item)
        if kind in self._arrays:
            is_small = item.nbytes < self.small_array and item.base is None
            return None if item.dtype.hasobject or is_small else self.store(item)
        if issubclass(kind, self._kinds[1]) and id(item) not in self._seen_modules:
            self._seen_modules.add(id(item))
            self.modules.append(item)
        return None

    def store_tensor(self, item: Any) -> Any:
        """Store a tensor; returns its persistent id."""
        if (transform := _active_transform(item)) is not None:
            raise UnsupportedGradientError(
                f"Parallel: a tensor inside {transform} cannot go to a worker process; use the "
                "transform inside the task."
            )
        return self.store(item)

    def store(self, item: Any) -> int:
        """Store an object; returns its number."""
        index = self._ids.get(id(item))
        if index is None:
            index = self._ids[id(item)] = len(self.stored)
            self.stored.append(item)
        return index


def _array_types() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.memmap)


def _active_transform(tensor: Any) -> str | None:
    """The transform that differentiates a tensor other than by its graph."""
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


def pack_task(function: Any, args: Any, kwargs: Any) -> tuple[Packer, int]:
    """Pickle a task.

    Returns:
        The pickler, and how many of its stored items are arguments.
    """
    packer = Packer()
    packer.dump((args, kwargs, bound_objects(function)))
    arguments = len(packer.stored)
    packer.dump(function)
    packer.dump(list(packer.modules))
    return packer, arguments


def bound_objects(function: Any) -> list[Any]:
    """Objects that the user bound to a callable, like arguments."""
    if isinstance(function, functools.partial):
        return [function.args, function.keywords, *bound_objects(function.func)]
    if isinstance(function, types.MethodType):
        return [function.__self__]
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)):
        return []
    return [function]


def version(item: Any) -> int | None:
    """torch's count of a tensor's in-place changes, if it has one."""
    torch = sys.modules["torch"]
    if not isinstance(item, torch.Tensor) or item.is_inference():
        return None
    return int(item._version)


def reference_counts(item: Any) -> tuple[int, ...]:
    """The reference counts of an array and its memory's owners."""
    counts = []
    while item is not None:
        counts.append(sys.getrefcount(item))
        item = getattr(item, "base", None)
    return tuple(counts)


def has_external_memory(item: Any) -> bool:
    """Whether others may write the memory, which `version` does not show."""
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


def holds_grad(item: Any, depth: int = 10) -> bool | None:
    """Whether anything in `item` requires grad; None: only pickling can tell."""
    torch = sys.modules["torch"]
    kind = type(item)
    if kind in _ATOMS:
        return False
    if kind in _array_types():
        return None if item.dtype.hasobject else False
    if issubclass(kind, torch.Tensor):
        return bool(item.requires_grad) or _active_transform(item) is not None
    if issubclass(kind, torch.nn.Module):
        return True if any(one.requires_grad for one in item.parameters()) else None
    if kind in (list, tuple, set, frozenset, dict) and depth:
        parts = [*item, *item.values()] if kind is dict else item
        answers = {holds_grad(part, depth - 1) for part in parts}
        return True if True in answers else (None if None in answers else False)
    numpy = sys.modules.get("numpy")
    atoms = (torch.dtype, torch.device, torch.Size, *([numpy.generic] if numpy else []))
    return False if issubclass(kind, atoms) else None


def grad_tensors(item: Any) -> list[Any]:
    """Tensors in an object that require grad; none if pickling fails."""
    if holds_grad(item) is False:
        return []
    packer = Packer()
    try:
        packer.dump(item)
    except Exception:
        return []
    return [one for one in packer.stored if getattr(one, "requires_grad", False)]
