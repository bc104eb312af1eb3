"""What tensors say of themselves: device, kind, gradient, text, and their values for NumPy."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation import errors, tags
from pytest_gradguard.simulation.mode import Simulation, handles, on_gpu, outside
from pytest_gradguard.simulation.moves import relocated

_tensor: Any = torch.Tensor


handles(_tensor.device.__get__)(on_gpu(lambda place, _: place))
handles(_tensor.get_device, torch.get_device)(on_gpu(lambda place, _: place.index))
handles(_tensor.is_cuda.__get__, _tensor.is_shared)(on_gpu(lambda *_: True))
handles(_tensor.is_cpu.__get__)(on_gpu(lambda *_: False))


@handles(_tensor.share_memory_)
def _share_memory(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs) if tags.device_of(args[0]) is None else args[0]


@handles(_tensor.grad.__get__, _tensor._grad.__get__)
def _grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    gradient = func(*args)
    if gradient is None:
        return None
    tensor = args[0]
    place = tags.device_of(tensor)
    if tags.device_of(gradient) == place:
        return gradient
    if place is not None and tags.device_of(gradient) is None:
        tags.put(gradient, place, simulation.machine.memory)
        return gradient
    gradient = relocated(simulation, gradient, place)
    tensor.grad = gradient
    return gradient


@handles(_tensor.grad.__set__, _tensor._grad.__set__)
def _set_grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, gradient = args
    if isinstance(gradient, torch.Tensor):
        own, its = tags.device_of(tensor), tags.device_of(gradient)
        if own != its:
            if own is not None and its is not None:
                raise errors.gradient_index(its, own)
            cpu = torch.device("cpu")
            raise errors.gradient(its or cpu, own or cpu)
    return func(*args)


@handles(_tensor.__repr__)
def _repr(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if tags.device_of(args[0]) is None:
        return func(*args, **kwargs)
    with outside(simulation):
        return torch._tensor_str._str(args[0], **kwargs)


@handles(_tensor.__format__)
def _format(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """What is more than one number is formatted as its text."""
    tensor, wanted = args
    if tags.device_of(tensor) is None or tensor.dim() == 0:
        return func(*args)
    with outside(simulation):
        return object.__format__(tensor, wanted)


@handles(_tensor.numpy)
def _numpy(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    place = tags.device_of(args[0])
    if place is None:
        return func(*args, **kwargs)
    if not kwargs.get("force"):
        raise errors.to_numpy(place)
    return func(*args, **kwargs).copy()


@handles(_tensor.__array__)
@on_gpu
def _array(place: torch.device, func: Any) -> Any:
    raise errors.to_numpy(place)


@handles(_tensor.apply_, _tensor.map_)
@on_gpu
def _on_cpu_only(place: torch.device, func: Any) -> Any:
    raise TypeError(f"{func.__name__} is only implemented on CPU tensors")


@handles(torch.device)
def _device_made(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.device(1)`` is the GPU with that number."""
    if len(args) == 1 and isinstance(args[0], int) and not isinstance(args[0], bool) and not kwargs:
        return func("cuda", args[0])
    return func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def _parse_to(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """What `nn.Module.to` makes of its arguments."""
    first = args[0] if args else kwargs.get("device", kwargs.get("other", kwargs.get("tensor")))
    if isinstance(first, torch.Tensor):
        device, dtype, *rest = func(*args, **kwargs)
        return (tags.device_of(first) or device, dtype, *rest)
    if isinstance(first, int) and not isinstance(first, bool):
        device = simulation.machine.meant(first)
        if args:
            return func(device, *args[1:], **kwargs)
        return func(**{**kwargs, "device": device})
    return func(*args, **kwargs)


@handles(_tensor.backward)
def _backward(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient that a backward begins with lies where its tensor does."""
    gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
    if isinstance(gradient, torch.Tensor):
        place, its = tags.device_of(args[0]), tags.device_of(gradient)
        if place != its:
            raise errors.root_gradient(place or "cpu", its or "cpu")
    return func(*args, **kwargs)


@handles(torch.autograd.grad)
def _autograd_grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients lie where the tensors lie that they are for."""
    simulation.machine.start_autograd()
    gradients = func(*args, **kwargs)
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    if isinstance(inputs, (list, tuple)):
        wanted = list(inputs)
    elif isinstance(inputs, dict):
        wanted = list(inputs.values())
    else:
        wanted = [inputs]
    placed = []
    for tensor, gradient in zip(wanted, gradients, strict=False):
        if isinstance(gradient, torch.Tensor) and isinstance(tensor, torch.Tensor):
            gradient = relocated(simulation, gradient, tags.device_of(tensor))
        placed.append(gradient)
    return tuple(placed) if isinstance(gradients, tuple) else gradients


@handles(torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
def _recurrent(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Input, state and weights lie together; the sizes of batches lie on the CPU."""
    if len(args) > 3:
        packed = not isinstance(args[3], bool)
        state, weights = args[2:4] if packed else args[1:3]
        given = tags.device_of(args[0])
        for what, tensors in (("parameter", weights), ("hidden", state)):
            for tensor in tags.tensors_in((tensors,)):
                place = tags.device_of(tensor)
                if place != given:
                    raise errors.recurrent(what, given or "cpu", place or "cpu")
    return simulation.ordinary(func, args, kwargs, mixed=True)


@handles(torch._VF._pad_packed_sequence)
def _unpack(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Lengths lie on the CPU."""
    result = func(*args, **kwargs)
    simulation.tag(result[0], tags.device_of(args[0]))
    return result


@handles(torch._VF._pack_padded_sequence)
def _pack(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Lengths and batch sizes lie on the CPU."""
    lengths = args[1]
    if tags.device_of(lengths) is not None:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {tags.device_of(lengths)} Long tensor"
        )
    result = func(*args, **kwargs)
    simulation.tag(result[0], tags.device_of(args[0]))
    return result


@handles(torch.nn.functional.triplet_margin_with_distance_loss)
def _distances(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """A distance that is the program's own sees where its tensors lie."""
    distance = kwargs.get("distance_function")

    def seen(*tensors: Any) -> Any:
        with outside(simulation):
            return distance(*tensors)

    if distance is not None:
        kwargs = {**kwargs, "distance_function": seen}
    return simulation.ordinary(func, args, kwargs)
