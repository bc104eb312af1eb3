"""Functions that answer or compute otherwise for tensors on a GPU.

They differ in data types, kernels, and the devices that their arguments may be on. torch's list of
operators for its own tests names the data types that each has for CUDA
(``torch.testing._internal.common_methods_invocations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_gradguard.simulation import placement
from pytest_gradguard.simulation.machine import (
    ANOTHER_LIBRARY,
    CannotSimulate,
    CannotSimulateAttribute,
)
from pytest_gradguard.simulation.mode import (
    Simulation,
    answers_on_gpu,
    handles,
    is_entered,
    user_code,
)
from pytest_gradguard.simulation.numerics import LOW
from pytest_gradguard.simulation.placement import CPU, PLAIN, device_of, device_or_cpu, tensors_in
from pytest_gradguard.simulation.replacements import Replacements

_core: Any = torch._C
_tensor: Any = torch.Tensor


# -- answers -------------------------------------------------------------------------------------

answers_on_gpu(_tensor.device.__get__)(lambda place, _: place)
answers_on_gpu(_tensor.get_device, torch.get_device)(lambda place, _: place.index)
answers_on_gpu(_tensor.is_cuda.__get__, _tensor.is_shared)(lambda *_: True)
answers_on_gpu(_tensor.is_cpu.__get__)(lambda *_: False)


@handles(_tensor.is_pinned)
def _is_pinned(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> bool:
    return placement.is_pinned(args[0].untyped_storage())


@handles(_tensor.share_memory_)
def _share_memory(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs) if device_of(args[0]) is None else args[0]


@answers_on_gpu(_tensor.__cuda_array_interface__.__get__)
def _interface(place: torch.device, func: Any) -> Any:
    raise CannotSimulateAttribute(ANOTHER_LIBRARY)


@answers_on_gpu(_tensor.__dlpack__)
def _dlpack(place: torch.device, func: Any) -> Any:
    raise CannotSimulate(ANOTHER_LIBRARY)


@answers_on_gpu(_tensor.__dlpack_device__)
def _dlpack_device(place: torch.device, func: Any) -> Any:
    return torch.utils.dlpack.DLDeviceType.kDLCUDA, place.index


@handles(_tensor.numpy)
def _numpy(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    place = device_of(args[0])
    if place is None:
        return func(*args, **kwargs)
    if not kwargs.get("force"):
        _array(place, func)
    return func(*args, **kwargs).copy()


@answers_on_gpu(_tensor.__array__)
def _array(place: torch.device, func: Any) -> Any:
    raise TypeError(
        f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


@answers_on_gpu(_tensor.apply_, _tensor.map_)
def _on_cpu_only(place: torch.device, func: Any) -> Any:
    raise TypeError(f"{func.__name__} is only implemented on CPU tensors")


@handles(_tensor.__repr__)
def _repr(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if device_of(args[0]) is None:
        return func(*args, **kwargs)
    with user_code(simulation):
        return torch._tensor_str._str(args[0], **kwargs)


@handles(_tensor.__format__)
def _format(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, spec = args
    if device_of(tensor) is None or tensor.dim() == 0:
        return func(*args)
    with user_code(simulation):
        return object.__format__(tensor, spec)


@handles(torch.device)
def _device(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.device(1)`` is the GPU with that index."""
    if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool) and not kwargs:
        return func("cuda", args[0])
    return func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def _parse_to(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Parse the arguments of `nn.Module.to`."""
    first = args[0] if args else kwargs.get("device", kwargs.get("other", kwargs.get("tensor")))
    if isinstance(first, torch.Tensor):
        device, dtype, *rest = func(*args, **kwargs)
        return (device_of(first) or device, dtype, *rest)
    if isinstance(first, int) and not isinstance(first, bool):
        device = simulation.machine.resolve(first)
        if args:
            return func(device, *args[1:], **kwargs)
        return func(**{**kwargs, "device": device})
    return func(*args, **kwargs)


# -- integers ------------------------------------------------------------------------------------


@handles(
    *(torch.mm, torch.matmul, torch.bmm, torch.mv, torch.dot, torch._C._nn.linear),
    *(_tensor.mm, _tensor.matmul, _tensor.__matmul__, _tensor.bmm, _tensor.mv, _tensor.dot),
)
def _product(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) > 1 and isinstance(args[1], torch.Tensor) and args[0].dtype is args[1].dtype:
        _refuse_integers(args[:2])
    return simulation.run(func, args, kwargs)


@handles(torch.addmm, torch.addmv, torch.addbmm, torch.baddbmm)
@handles(_tensor.addmm, _tensor.addmv, _tensor.addbmm, _tensor.baddbmm)
@handles(_tensor.addmm_, _tensor.addmv_, _tensor.addbmm_, _tensor.baddbmm_)
def _product_and_sum(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) > 2 and all(isinstance(one, torch.Tensor) for one in args[:3]):
        _refuse_integers(args[:3])
    return simulation.run(func, args, kwargs)


def _refuse_integers(tensors: Sequence[Any]) -> None:
    """Raise CUDA's error for a product of integers, the last two `tensors`."""
    place = device_of(tensors[0])
    if place is None or not all(_is_integer(one) and device_of(one) == place for one in tensors):
        return
    first, second = tensors[-2:]
    dims = first.dim(), second.dim()
    if dims == (1, 1):
        name = "dot"
    elif dims == (2, 1):
        name = "addmv_impl_cuda"
    else:
        name = "addmm_cuda" if min(dims) <= 2 else "baddbmm_cuda"
    kind = first.type().removeprefix("torch.").removesuffix("Tensor")
    raise NotImplementedError(f"\"{name}\" not implemented for '{kind}'")


def _is_integer(tensor: Any) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


# -- histograms ----------------------------------------------------------------------------------


@handles(torch.histc, _tensor.histc)
def _histc(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """GPUs count integers in their type; the CPU cannot count them."""
    tensor = args[0] if args else kwargs["input"]
    if device_of(tensor) is None or not _is_integer(tensor) or tensor.dtype is torch.bool:
        return simulation.run(func, args, kwargs)
    options = {**dict(zip(("input", "bins", "min", "max"), args, strict=False)), **kwargs}
    options.pop("input", options.pop("self", None))
    out = options.pop("out", None)
    for end in ("min", "max"):
        options[end] = int(options.get(end, 0))
    counts = simulation.run(torch.histc, (tensor.double(),), options).to(tensor.dtype)
    simulation.tag(counts, device_of(tensor))
    return counts if out is None else out.resize_(counts.shape).copy_(counts)


@handles(torch.histogram, _tensor.histogram, torch.histogramdd)
def _histogram(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """GPUs have no other histograms."""
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, torch.Tensor) or device_of(tensor) is None:
        return simulation.run(func, args, kwargs)
    bins = args[1] if len(args) > 1 else kwargs.get("bins")
    if func is not torch.histogramdd:
        name = f"histogram.{'bins_tensor' if isinstance(bins, torch.Tensor) else 'bin_ct'}"
    elif isinstance(bins, (list, tuple)) and any(isinstance(b, torch.Tensor) for b in bins):
        name = "_histogramdd_from_bin_tensors"
    else:
        name = "_histogramdd_bin_edges"
    raise NotImplementedError(
        f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend. This could be "
        "because the operator doesn't exist for this backend, or was omitted during the "
        "selective/custom build process (if using custom build)."
    )


# -- indexing: a tensor on a GPU accepts an index on the CPU -------------------------------------


@handles(_tensor.__getitem__)
def _getitem(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, index = args
    place = device_of(tensor)
    _check_index(place, index)
    if place is not None and simulation.machine.in_bad_fork:
        return simulation.run(func, args, kwargs, mixed=True)
    result = func(tensor, index)
    simulation.tag(result, place)
    return result


@handles(_tensor.__setitem__)
def _setitem(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, index, value = args
    place = device_of(tensor)
    _check_index(place, index)
    if (
        isinstance(value, torch.Tensor)
        and value.dim()
        and device_of(value) != place
        and any(map(_selects_many, _index_tensors(index)))
    ):
        raise placement.argument_error("index_put_", place or CPU, device_or_cpu(value), "values")
    return func(tensor, index, value)


def _index_tensors(index: Any) -> list[Any]:
    values = index if isinstance(index, (list, tuple)) else (index,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _selects_many(index: Any) -> bool:
    return bool(index.dim() > 0 or index.dtype is torch.bool)


def _check_index(place: torch.device | None, index: Any) -> None:
    for one in _index_tensors(index):
        if device_of(one) not in (None, place) and _selects_many(one):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({place or 'cpu'})"
            )


# -- lists of tensors, which optimizers use: each position is on one device ----------------------


@handles(*(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_")))
def _foreach(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    lists = [value for value in (*args, *kwargs.values()) if _is_tensor_list(value)]
    places = [[device_of(tensor) for tensor in tensors] for tensors in lists]
    if not any(place for some in places for place in some):
        return func(*args, **kwargs)
    if simulation.machine.in_bad_fork:
        simulation.refuse_in_fork(func)
    if func.__name__ != "_foreach_copy_" and any(some != places[0] for some in places[1:]):
        for tensors in zip(*lists, strict=False):
            placement.find_common_device(func, list(tensors))
    result = func(*args, **kwargs)
    if isinstance(result, (list, tuple)):
        for tensor, place in zip(result, places[0], strict=False):
            simulation.tag(tensor, place)
    return result


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


# -- attention: the CPU has neither memory-efficient kernels nor cuDNN's -------------------------


@handles(torch._C._nn.scaled_dot_product_attention)
def _attention(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    query = args[0] if args else kwargs["query"]
    if _core._get_math_sdp_enabled() or device_of(query) is None:
        return simulation.run(func, args, kwargs)
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not _has_kernel(query, mask):
        raise RuntimeError("No available kernel. Aborting execution.")
    return _run_by_math(simulation, func, args, kwargs)


@handles(torch.nn.functional.multi_head_attention_forward)
def _multi_head_attention(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if _core._get_math_sdp_enabled() or device_of(args[0]) is None:
        return simulation.run(func, args, kwargs)
    return _run_by_math(simulation, func, args, kwargs)


def _has_kernel(query: Any, mask: Any) -> bool:
    """Whether a GPU has one of the enabled kernels for `query`."""
    low = query.dtype in LOW or torch.is_autocast_enabled("cuda")
    return bool(
        (_core._get_flash_sdp_enabled() and low and mask is None)
        or (_core._get_mem_efficient_sdp_enabled() and (low or query.dtype is torch.float32))
        or (_core._get_cudnn_sdp_enabled() and low)
    )


def _run_by_math(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    _core._set_sdp_use_math(True)
    try:
        return simulation.run(func, args, kwargs)
    finally:
        _core._set_sdp_use_math(False)


# -- recurrent layers and others -----------------------------------------------------------------


@handles(torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
def _recurrent(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Input, state and weights must be on one device."""
    if len(args) > 3:
        packed = not isinstance(args[3], bool)
        state, weights = args[2:4] if packed else args[1:3]
        place = device_or_cpu(args[0])
        for name, tensors in (("parameter", weights), ("hidden", state)):
            for other in map(device_or_cpu, tensors_in((tensors,))):
                if other != place:
                    raise RuntimeError(
                        f"Input and {name} tensors are not at the same device, found input tensor "
                        f"at {place} and {name} tensor at {other}"
                    )
    return simulation.run(func, args, kwargs, mixed=True)


@handles(torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence)
def _pack(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Lengths and batch sizes are on the CPU."""
    lengths = args[1]
    if func == torch._VF._pack_padded_sequence and device_of(lengths) is not None:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {device_of(lengths)} Long tensor"
        )
    result = func(*args, **kwargs)
    simulation.tag(result[0], device_of(args[0]))
    return result


@handles(torch.nn.functional.triplet_margin_with_distance_loss)
def _distance_loss(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The program's distance function sees the GPUs."""
    distance = kwargs.get("distance_function")

    def seeing_gpus(*tensors: Any) -> Any:
        with user_code(simulation):
            return distance(*tensors)

    if distance is not None:
        kwargs = {**kwargs, "distance_function": seeing_gpus}
    return simulation.run(func, args, kwargs)


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Group tensors by simulated GPU, and keep the fast paths of attention.

    `torch.nn` takes those for plain tensors: it asks `torch.overrides.has_torch_function`, which
    then ignores the simulation. Other modules of torch have imported the function itself.
    """
    group_tensors = torch._C._group_tensors_by_device_and_dtype
    has_override = torch.overrides.has_torch_function

    def group(lists: Sequence[Sequence[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (device, dtype), (columns, indices) in group_tensors(lists, with_indices).items():
            with torch._C.DisableTorchFunction():
                places = [device_of(tensor) or device for tensor in columns[0]]
            for place in dict.fromkeys(places):
                rows = [row for row, one in enumerate(places) if one == place]
                groups[place, dtype] = (
                    [[column[row] for row in rows] if column else column for column in columns],
                    [indices[row] for row in rows] if indices else indices,
                )
        return groups

    def has_torch_function(relevant_args: Any) -> bool:
        if torch._C._len_torch_function_stack() != 1 or not is_entered(simulation):
            return bool(has_override(relevant_args))
        with torch._C.DisableTorchFunction():
            return any(
                isinstance(value, torch.Tensor) and type(value) not in PLAIN
                for value in relevant_args
            )

    replaced.put(torch._C, _group_tensors_by_device_and_dtype=group)
    replaced.put(torch.overrides, has_torch_function=has_torch_function)
