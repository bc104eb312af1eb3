"""The device that the tensors of one operation share, and the errors where they share none."""

from __future__ import annotations

import sys
from typing import Any

import torch

from pytest_gradguard.simulation import errors, tags

_CPU = torch.device("cpu")

ANYWHERE = frozenset(
    {
        *("copy_", "_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru"),
        *("rnn_tanh", "rnn_relu", "tensor_split", "ctc_loss", "_ctc_loss", "set_", "is_set_to"),
        *("expand_as", "view_as", "reshape_as", "is_same_size", "result_type", "can_cast"),
        *("promote_types", "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d"),
        *("resize_as_", "backward", "grad", "new_tensor", "__reduce_ex__", "__deepcopy__"),
        *("__set__", "__get__", "register_hook", "is_nonzero", "sum_to_size", "meshgrid"),
        *("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "map_"),
        *(
            "split",
            "repeat_interleave_",
            "nested_tensor",
            "swap_tensors",
            "typename",
            "_has_compatible_shallow_copy_type",
        ),
        *("fill_", "sparse_coo_tensor"),
    }
)
"""Functions whose tensors may lie on several devices."""

NEEDS_NO_GPU = frozenset(
    {
        *("__get__", "__set__", "size", "dim", "stride", "numel", "element_size", "__len__"),
        *("is_contiguous", "data_ptr", "view", "detach", "reshape", "untyped_storage", "storage"),
        *("_typed_storage", "__reduce_ex__", "__hash__", "ndimension", "storage_offset"),
        *("is_floating_point", "is_complex", "requires_grad_", "expand", "permute", "transpose"),
        *("unsqueeze", "squeeze", "t", "unbind", "__getitem__", "is_shared", "retain_grad"),
    }
)
"""What goes on working, in a forked child, on the tensors of the parent."""

STRICT = frozenset(
    {
        *("mm", "matmul", "__matmul__", "__rmatmul__", "bmm", "addmm", "baddbmm", "addmv", "mv"),
        *("linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "dot"),
        *("conv_transpose2d", "conv_transpose3d", "embedding", "embedding_bag", "cat", "concat"),
        *("concatenate", "stack", "hstack", "vstack", "dstack", "gather", "scatter", "scatter_"),
        *("scatter_add", "scatter_add_", "index_select", "index_add", "index_add_", "index_copy"),
        *("index_copy_", "batch_norm", "layer_norm", "group_norm", "instance_norm", "einsum"),
        *("nll_loss", "cross_entropy", "take", "take_along_dim", "masked_select", "bincount"),
        *("scaled_dot_product_attention", "multi_head_attention_forward", "tensordot", "equal"),
        *("searchsorted", "bucketize", "cdist", "outer", "kron", "solve", "lstsq", "inner"),
        *("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_", "chain_matmul"),
    }
)
"""Functions that are not elementwise: a number on the CPU does not go with tensors on a GPU."""

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
"""What torch calls the operation, and its arguments, in its error."""


def common(
    func: Any, tensors: list[Any], mixed: bool = False
) -> tuple[torch.device | None, list[Any]]:
    """The GPU on which `tensors` lie, the arguments of `func`; None: the CPU.

    Returns:
        That, and those of the tensors that lie on the CPU nevertheless.

    Raises:
        RuntimeError: they lie on several devices.
    """
    first = tags.device_of(tensors[0])
    if len(tensors) == 1:
        return first, []
    name = getattr(func, "__name__", "")
    if (
        first is not None
        and tensors[0].dtype is not tensors[1].dtype
        and name.startswith("conv")
        and not torch.is_autocast_enabled("cuda")
    ):  # the CPU says it in other words
        raise errors.convolution(*(kind_of(tensor) for tensor in tensors[:2]))
    places = [first, *(tags.device_of(tensor) for tensor in tensors[1:])]
    found = {place for place in places if place is not None}
    if not found:
        return None, []
    if len(found) == 1 and None not in places:
        return first, []
    strays = [tensor for tensor, place in zip(tensors, places, strict=True) if place is None]
    if mixed or name in ANYWHERE or name.startswith("_fused"):
        if first is None and not name.endswith("_") and name != "__set__":
            first = found.pop()
        return first, strays
    try:
        return _of_mixed(name, tensors, places), strays
    except RuntimeError:
        if not _in_decomposition():
            raise
    return first or found.pop(), strays


def _in_decomposition() -> bool:
    """Whether torch itself calls this operation, in Python, as a part of another one.

    Transforms (`vmap`, `jvp`) make operations of smaller ones so, and some functions have their
    backward in Python; what these are given has been made inside, and says nothing of where it
    lies.
    """
    frame: Any = sys._getframe()
    for _ in range(_FRAMES):
        if frame is None:
            return False
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", _HERE)):
            return False
        if name.startswith(_DECOMPOSITIONS):
            return True
        frame = frame.f_back
    return False


_FRAMES = 12
_DECOMPOSITIONS = ("torch._decomp", "torch._refs", "torch._prims", "torch.autograd.function")
_HERE = "pytest_gradguard.simulation."


def _of_mixed(
    name: str, tensors: list[Any], places: list[torch.device | None]
) -> torch.device | None:
    if name in ("index_put", "index_put_"):  # its indices may lie on the CPU
        tensors, places = [tensors[0], tensors[-1]], [places[0], places[-1]]
        if places[0] == places[1] or (places[1] is None and _is_number(tensors[1])):
            return places[0]
    elif name in ("masked_fill", "masked_fill_") and len(tensors) > 2 and _is_number(tensors[2]):
        tensors, places = tensors[:2], places[:2]
        if places[0] == places[1]:
            return places[0]
    strict = name in STRICT
    if name == "linear" and len(tensors) == 3:  # torch makes it an addmm, the bias first
        name, order = "addmm", (2, 0, 1)
        tensors, places = [tensors[i] for i in order], [places[i] for i in order]
    elif name == "embedding":
        tensors, places = tensors[::-1], places[::-1]
    elif name.startswith("conv") and places[0] != places[1]:
        raise errors.convolution(*(kind_of(tensor) for tensor in tensors[:2]))
    writes = name.endswith("_") and not name.endswith("__")
    # An elementwise operation goes by its first tensor on a GPU, others by their first tensor.
    shared: Any = None if strict else next(place for place in places if place is not None)
    for position, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        if place is None and not strict and not (writes and position == 0) and _is_number(tensor):
            continue
        here = place or _real(tensor)
        if here.type == "meta":
            continue
        if shared is None:
            shared = here
        elif shared != here:
            own = errors.in_its_own_words(name, *(place or _CPU for place in places[:2]))
            raise own or _error(name, shared, here, position, strict)
    return None if shared is None or shared.type != "cuda" else shared


def kind_of(tensor: Any) -> str:
    """What ``tensor.type()`` says."""
    with torch._C.DisableTorchFunction():
        name: str = tensor.type()
    return name if tags.device_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)


def _is_number(tensor: Any) -> bool:
    return bool(tensor.dim() == 0)


def _real(tensor: Any) -> Any:
    with torch._C.DisableTorchFunction():
        return tensor.device


def _error(name: str, shared: Any, here: Any, position: int, strict: bool) -> RuntimeError:
    if not strict:
        return errors.elementwise(shared, here)
    operation, names = _ARGUMENTS.get(name, (name.strip("_"), ()))
    argument = names[position] if position < len(names) else "tensors"
    return errors.argument(operation, shared, here, argument)
