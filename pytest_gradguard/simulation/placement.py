"""The simulated GPU that a tensor is on, and the one that an operation runs on.

The storage's Python object, which lives as long as the storage, carries a tag with the device. All
that shares the storage (views, `detach`, `.data`, a `Parameter` made of it) is on the same GPU.
An operation on tensors of several devices raises torch's error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation.machine import Memory

_TAG = "_gradguard_device"
_PINNED = "_gradguard_pinned"
CPU = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The tensor classes without rules of their own."""

_storage_of: Any = torch._C.TensorBase.untyped_storage


class _Tag:
    """The device of a storage; frees its memory with the storage."""

    __slots__ = ("_memory", "_size", "device")

    def __init__(self, device: torch.device, size: int, memory: Memory) -> None:
        self.device = device
        self._memory = memory
        self._size = memory.allocate(device.index, size)

    def __del__(self) -> None:
        try:
            self._memory.free(self.device.index, self._size)
        except Exception:  # the interpreter is exiting
            pass


def device_of(tensor: Any) -> torch.device | None:
    """The simulated GPU that `tensor` is on; None: its real device."""
    tag = vars(_tagged(tensor)).get(_TAG)
    return None if tag is None else tag.device


simulated_devices.device_of = device_of


def device_or_cpu(tensor: Any) -> torch.device:
    """The simulated GPU that `tensor` is on, or the CPU."""
    return device_of(tensor) or CPU


def storage_device(storage: Any) -> torch.device | None:
    """The simulated GPU that an untyped storage is on."""
    tag = vars(storage).get(_TAG)
    return None if tag is None else tag.device


def set_device(tensor: Any, device: torch.device | None, memory: Memory) -> None:
    """Put `tensor` on `device`; None: the CPU."""
    set_storage_device(_tagged(tensor), device, memory)


def set_missing_device(tensor: Any, device: torch.device, memory: Memory) -> None:
    """Put `tensor` on `device` unless it is on a simulated GPU already."""
    storage = _tagged(tensor)
    if _TAG not in vars(storage):
        set_storage_device(storage, device, memory)


def set_storage_device(storage: Any, device: torch.device | None, memory: Memory) -> None:
    """Put an untyped storage on `device`; None: the CPU."""
    if device is None:
        vars(storage).pop(_TAG, None)
    else:
        size = storage.nbytes() if isinstance(storage, torch.UntypedStorage) else 0
        vars(storage)[_TAG] = _Tag(device, size, memory)


def is_pinned(storage: Any) -> bool:
    """Whether an untyped storage is in pinned memory."""
    return bool(vars(storage).get(_PINNED))


def set_pinned(storage: Any) -> None:
    """Mark an untyped storage as pinned."""
    vars(storage)[_PINNED] = True


def storage_key(tensor: Any) -> int:
    """Equal for tensors that share their memory."""
    return id(_tagged(tensor))


def _tagged(tensor: Any) -> Any:
    """The object that carries the tag: the storage, if any."""
    try:
        if type(tensor) in PLAIN:
            return _storage_of(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return _storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            return _tagged(functorch.get_unwrapped(tensor))
        return tensor  # sparse and other tensors without a storage


def name_set(text: str) -> frozenset[str]:
    """The names of functions, separated by spaces."""
    return frozenset(text.split())


def tensors_in(values: Iterable[Any], depth: int = 3) -> list[Any]:
    """The tensors among `values` and in nested lists, tuples and dicts."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif depth and isinstance(value, (list, tuple)):
            found += tensors_in(value, depth - 1)
        elif depth and isinstance(value, dict):
            found += tensors_in(value.values(), depth - 1)
    return found


def type_name(tensor: Any) -> str:
    """The result of ``tensor.type()``."""
    with torch._C.DisableTorchFunction():
        name: str = tensor.type()
    return name if device_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)


# -- the device of an operation ------------------------------------------------------------------

_ANY_DEVICES = name_set(
    "copy_ _pack_padded_sequence _pad_packed_sequence lstm gru rnn_tanh rnn_relu tensor_split "
    "ctc_loss _ctc_loss set_ is_set_to expand_as view_as reshape_as is_same_size result_type "
    "can_cast promote_types broadcast_tensors atleast_1d atleast_2d atleast_3d resize_as_ "
    "backward grad new_tensor __reduce_ex__ __deepcopy__ __set__ __get__ register_hook "
    "is_nonzero sum_to_size meshgrid _amp_foreach_non_finite_check_and_unscale_ "
    "_amp_update_scale_ map_ split repeat_interleave_ nested_tensor swap_tensors typename "
    "_has_compatible_shallow_copy_type fill_ sparse_coo_tensor"
)
"""Functions whose tensors may be on several devices."""

_NOT_ELEMENTWISE = name_set(
    "mm matmul __matmul__ __rmatmul__ bmm addmm baddbmm addmv mv linear bilinear conv1d conv2d "
    "conv3d conv_transpose1d dot conv_transpose2d conv_transpose3d embedding embedding_bag cat "
    "concat concatenate stack hstack vstack dstack gather scatter scatter_ scatter_add "
    "scatter_add_ index_select index_add index_add_ index_copy index_copy_ batch_norm "
    "layer_norm group_norm instance_norm einsum nll_loss cross_entropy take take_along_dim "
    "masked_select bincount scaled_dot_product_attention multi_head_attention_forward "
    "tensordot equal searchsorted bucketize cdist outer kron solve lstsq inner scatter_reduce "
    "scatter_reduce_ index_reduce index_reduce_ chain_matmul"
)
"""Functions that refuse a zero-dimensional CPU tensor among tensors on a GPU."""

_ARGUMENTS = {
    "mm": ("mm", ("self", "mat2")),
    "matmul": ("mm", ("self", "mat2")),
    "__matmul__": ("mm", ("self", "mat2")),
    "bmm": ("bmm", ("self", "mat2")),
    "addmm": ("addmm", ("self", "mat1", "mat2")),
    "embedding": ("_index_select", ("self", "index")),
    "nll_loss": ("nll_loss_forward", ("self", "target", "weight")),
    "cross_entropy": ("nll_loss_forward", ("self", "target", "weight")),
    "batch_norm": ("_cudnn_batch_norm", ("input", "running_mean", "running_var", "weight")),
    "layer_norm": ("_native_layer_norm", ("input", "weight", "bias")),
}
"""The names of operations and their arguments in torch's error."""

_SEARCHED = (
    "torch.searchsorted(): boundaries and input value tensors should have same device type, but "
    "got boundaries tensor device type {} and input value tensor device type {}"
)
_OWN_MESSAGES = {
    "grid_sample": "grid_sampler(): expected input and grid to be on same device, but input is on "
    "{one} and grid is on {other}",
    "quantile": "quantile() q tensor must be on the same device as the input tensor",
    "nanquantile": "quantile() q tensor must be on the same device as the input tensor",
    "masked_fill": "expected self and mask to be on the same device, but got mask on {other} and "
    "self on {one}",
    "searchsorted": _SEARCHED.format("{one}", "{other}"),
    "bucketize": _SEARCHED.format("{other}", "{one}"),
}
"""Messages of functions that check their first two tensors themselves."""


def find_common_device(
    func: Any, tensors: list[Any], mixed: bool = False
) -> tuple[torch.device | None, list[Any]]:
    """The GPU that `func` runs on; None: the CPU.

    Args:
        func: the function.
        tensors: its arguments.
        mixed: they may be on several devices.

    Returns:
        The GPU, and the arguments that are on the CPU nevertheless.

    Raises:
        RuntimeError: the arguments are on several devices.
    """
    first = device_of(tensors[0])
    if len(tensors) == 1:
        return first, []
    name = getattr(func, "__name__", "")
    if (
        first is not None
        and tensors[0].dtype is not tensors[1].dtype
        and name.startswith("conv")
        and not torch.is_autocast_enabled("cuda")
    ):
        raise _convolution_error(tensors)  # the CPU has another message
    places = [first, *(device_of(tensor) for tensor in tensors[1:])]
    found = {place for place in places if place is not None}
    if not found:
        return None, []
    if len(found) == 1 and None not in places:
        return first, []
    on_cpu = [tensor for tensor, place in zip(tensors, places, strict=True) if place is None]
    if mixed or name in _ANY_DEVICES or name.startswith("_fused"):
        if first is None and not name.endswith("_") and name != "__set__":
            first = found.pop()
        return first, on_cpu
    try:
        return _check_devices(name, tensors, places), on_cpu
    except RuntimeError:
        if not _in_decomposition():
            raise
    return first or found.pop(), on_cpu


_FRAMES = 12
_DECOMPOSITIONS = ("torch._decomp", "torch._refs", "torch._prims", "torch.autograd.function")


def _in_decomposition() -> bool:
    """Whether torch itself calls this operation as a part of another one.

    Transforms (`vmap`, `jvp`) and some backward functions do so in Python, with intermediate
    tensors that have no tag.
    """
    frame: Any = sys._getframe()
    for _ in range(_FRAMES):
        if frame is None:
            return False
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", __package__)):
            return False
        if name.startswith(_DECOMPOSITIONS):
            return True
        frame = frame.f_back
    return False


def _check_devices(
    name: str, tensors: list[Any], places: list[torch.device | None]
) -> torch.device | None:
    if name in ("index_put", "index_put_"):  # its indices may be on the CPU
        tensors, places = [tensors[0], tensors[-1]], [places[0], places[-1]]
        if places[0] == places[1] or (places[1] is None and _is_number(tensors[1])):
            return places[0]
    elif name in ("masked_fill", "masked_fill_") and len(tensors) > 2 and _is_number(tensors[2]):
        tensors, places = tensors[:2], places[:2]
        if places[0] == places[1]:
            return places[0]
    elementwise = name not in _NOT_ELEMENTWISE
    if name == "linear" and len(tensors) == 3:  # torch runs it as addmm, bias first
        name, order = "addmm", (2, 0, 1)
        tensors, places = [tensors[i] for i in order], [places[i] for i in order]
    elif name == "embedding":
        tensors, places = tensors[::-1], places[::-1]
    elif name.startswith("conv") and places[0] != places[1]:
        raise _convolution_error(tensors)
    in_place = name.endswith("_") and not name.endswith("__")
    # elementwise operations run where their first tensor on a GPU is, others where their first is
    shared: Any = next(place for place in places if place is not None) if elementwise else None
    for position, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        is_output = in_place and position == 0
        if place is None and elementwise and not is_output and _is_number(tensor):
            continue
        if place is None:
            with torch._C.DisableTorchFunction():
                place = tensor.device
        if place.type == "meta":
            continue
        if shared is None:
            shared = place
        elif shared != place:
            one, other = (each or CPU for each in places[:2])
            message = _OWN_MESSAGES.get(name.removesuffix("_"))
            if message is not None and one != other:
                raise RuntimeError(message.format(one=one, other=other))
            if elementwise:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {shared} and {place}!"
                )
            operation, names = _ARGUMENTS.get(name, (name.strip("_"), ()))
            argument = names[position] if position < len(names) else "tensors"
            raise argument_error(operation, shared, place, argument)
    return None if shared is None or shared.type != "cuda" else shared


def _is_number(tensor: Any) -> bool:
    return bool(tensor.dim() == 0)


def argument_error(operation: str, common: Any, other: Any, argument: str) -> RuntimeError:
    """torch's error for an argument that is not on the `common` device."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version >= (2, 8):
        found = f"but got {argument} is on {other}, different from other tensors on {common}"
        checked = "when checking argument"
    else:
        found = f"but found at least two devices, {common} and {other}!"
        checked = f"when checking argument for argument {argument}"
    return RuntimeError(
        f"Expected all tensors to be on the same device, {found} "
        f"({checked} in method wrapper_CUDA_{operation})"
    )


def _convolution_error(tensors: list[Any]) -> RuntimeError:
    given, weight = map(type_name, tensors[:2])
    return RuntimeError(f"Input type ({given}) and weight type ({weight}) should be the same")
