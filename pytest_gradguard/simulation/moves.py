"""Tensors that change their device: `to`, `cuda`, `cpu`, `copy_`, and their gradients' way back."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.errors import ANOTHER_LIBRARY, CannotSimulate, NoInterface
from pytest_gradguard.simulation.mode import Simulation, handles, on_gpu

_tensor = torch.Tensor
_to_cpu: Any = torch._C.TensorBase.to


def move(
    simulation: Simulation,
    tensor: Any,
    target: torch.device | None,
    *,
    dtype: Any = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """`tensor` on `target` (None: the CPU): itself where it is there already, else a copy."""
    source = tags.device_of(tensor)
    if target is not None and target != source:
        simulation.prepare(target)
    crosses = source != target
    options.pop("non_blocking", None)
    if options.get("memory_format") is None:
        options.pop("memory_format", None)
    result = _to_cpu(tensor, "cpu", dtype or tensor.dtype, copy=copy or crosses, **options)
    simulation.tag(result, target)
    if crosses and result.grad_fn is not None:
        send_back(simulation, result.grad_fn, source)
    return result


def send_back(
    simulation: Simulation, node: Any, source: torch.device | None, position: int | None = None
) -> None:
    """Have the gradient that `node` gives lie where the tensor came from.

    Args:
        position: which of its gradients; None: each.
    """

    def hook(given: Any, _: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return tuple(
                gradient
                if gradient is None or (position is not None and position != index)
                else relocated(simulation, gradient, source)
                for index, gradient in enumerate(given)
            )

    node.register_hook(hook)


def relocated(simulation: Simulation, tensor: Any, device: torch.device | None) -> Any:
    """`tensor`, or a copy of it where it does not lie on `device` (None: the CPU)."""
    if tags.device_of(tensor) == device:
        return tensor
    copied = tensor.clone()
    if device is None:
        tags.remove(copied)
    else:
        tags.put(copied, device, simulation.machine.memory)
    return copied


@handles(_tensor.to)
def _to(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    first = rest[0] if rest else kwargs.get("other", kwargs.get("device"))
    if isinstance(first, torch.Tensor):
        options = {key: value for key, value in kwargs.items() if key != "other"}
        options.update(zip(("non_blocking", "copy"), rest[1:], strict=False))
        if not _on_cpu_or_gpu(first) or not _on_cpu_or_gpu(tensor):
            return func(*args, **kwargs)
        target = tags.device_of(first)
        return move(simulation, tensor, target, dtype=first.dtype, **options)
    if first is None or isinstance(first, torch.dtype):
        return simulation.ordinary(func, args, kwargs)
    target = simulation.machine.meant(first)
    plain = torch.device(first) if isinstance(first, str) else first
    if target is None and plain.type != "cpu":
        return func(*args, **kwargs)
    if not _on_cpu_or_gpu(tensor):
        if target is not None:
            simulation.prepare(target)
            return func(tensor, "cpu", *rest[1:], **_without(kwargs, "device"))
        return func(*args, **kwargs)
    options = _without(kwargs, "device")
    options.update(zip(("dtype", "non_blocking", "copy"), rest[1:], strict=False))
    return move(simulation, tensor, target, **options)


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != name}


def _on_cpu_or_gpu(tensor: Any) -> bool:
    """Whether `tensor` really lies on the CPU: the simulated GPUs are there, too."""
    with torch._C.DisableTorchFunction():
        return bool(tensor.device.type == "cpu")


@handles(_tensor.cuda)
def _cuda(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    names = ("self", "device", "non_blocking", "memory_format")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor = given.pop("self")
    target = simulation.machine.of_cuda_call(given.pop("device", None))
    if not _on_cpu_or_gpu(tensor):
        simulation.prepare(target)
        return tensor.to("cpu")
    return move(simulation, tensor, target, **given)


@handles(_tensor.cpu)
def _cpu(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if tags.device_of(args[0]) is None:
        return func(*args, **kwargs)
    return move(simulation, args[0], None, **kwargs)


@handles(_tensor.copy_)
def _copy(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    source = args[1] if len(args) > 1 else kwargs.get("src")
    result = simulation.ordinary(func, args, kwargs, mixed=True)
    if isinstance(source, torch.Tensor) and source.requires_grad and torch.is_grad_enabled():
        place = tags.device_of(source)
        if place != tags.device_of(tensor) and result.grad_fn is not None:
            send_back(simulation, result.grad_fn, place, position=1)
    return result


@handles(_tensor.type_as)
def _type_as(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return move(simulation, args[0], tags.device_of(other), dtype=other.dtype)


@handles(_tensor.type)
def _type(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    place = tags.device_of(tensor)
    wanted = rest[0] if rest else kwargs.get("dtype")
    if wanted is None:
        name: str = func(tensor)
        return name if place is None else name.replace("torch.", "torch.cuda.", 1)
    if isinstance(wanted, torch.dtype):
        return simulation.ordinary(func, args, kwargs)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    plain = name.replace("torch.cuda.", "torch.")
    kind = getattr(torch, plain.removeprefix("torch."), None)
    if kind is None:
        raise ValueError(f"invalid type: '{wanted}'")
    target = None
    if plain != name:
        target = place or torch.device("cuda", simulation.machine.current)
    return move(simulation, tensor, target, dtype=kind.dtype)


@handles(torch.tensor, torch.as_tensor, torch.asarray)
def _from_data(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """`torch.tensor` and its kin: numbers go to the CPU, a tensor stays where it is."""
    names = ("data", "dtype", "device")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    data = args[0] if args else given.get("data", given.get("obj"))
    device = given.pop("device", None)
    given.pop("data", None)
    given.pop("obj", None)
    place = tags.device_of(data) if isinstance(data, torch.Tensor) else None
    if device is None and not isinstance(data, torch.Tensor):
        device = torch.utils._device.CURRENT_DEVICE
    target = simulation.machine.meant(device)
    if device is not None and target is None and torch.device(device).type != "cpu":
        return func(*args, **kwargs)
    if device is None:
        target = place
    pinned = given.pop("pin_memory", False)
    if target is not None:
        simulation.prepare(target)
    if func is not torch.tensor and target != place:
        given["copy"] = True
        func = torch.asarray
    result = func(data, **given, device="cpu")
    simulation.tag(result, target)
    if pinned:
        simulation.machine.pin()
        vars(result.untyped_storage())[tags.PINNED] = True
    return result


@handles(_tensor.new_tensor)
def _new_tensor(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    target = simulation.machine.meant(device)
    if device is None:
        target = tags.device_of(args[0])
    if target is not None:
        simulation.prepare(target)
    result = func(*args, **_without(kwargs, "device"))
    simulation.tag(result, target)
    return result


@handles(_tensor.pin_memory)
def _pin_memory(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if tags.device_of(tensor) is not None:
        raise RuntimeError(
            f"cannot pin 'torch.cuda.{tensor.type().removeprefix('torch.')}' only dense CPU "
            "tensors can be pinned"
        )
    if vars(tensor.untyped_storage()).get(tags.PINNED):
        return tensor
    simulation.machine.pin()
    result = tensor.clone()
    vars(result.untyped_storage())[tags.PINNED] = True
    return result


@handles(_tensor.is_pinned)
def _is_pinned(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> bool:
    return bool(vars(args[0].untyped_storage()).get(tags.PINNED))


@handles(_tensor.__cuda_array_interface__.__get__)
@on_gpu
def _interface(place: torch.device, func: Any) -> Any:
    raise NoInterface(ANOTHER_LIBRARY)


@handles(_tensor.__dlpack__)
@on_gpu
def _dlpack(place: torch.device, func: Any) -> Any:
    raise CannotSimulate(ANOTHER_LIBRARY)


@handles(_tensor.__dlpack_device__)
@on_gpu
def _dlpack_device(place: torch.device, func: Any) -> Any:
    return torch.utils.dlpack.DLDeviceType.kDLCUDA, place.index
