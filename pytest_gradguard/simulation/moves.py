"""Memory that moves between devices: tensors, storages, and copies in other processes.

`torch.multiprocessing` sends a handle of a GPU's memory; here the receiver maps the CPU memory
behind the tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing import reductions

from pytest_gradguard.simulation import placement
from pytest_gradguard.simulation.backward import return_gradient
from pytest_gradguard.simulation.mode import Simulation, handles, inside_torch, local
from pytest_gradguard.simulation.placement import device_of, storage_device, type_name
from pytest_gradguard.simulation.replacements import Replacements

_tensor: Any = torch.Tensor
_plain_to: Any = torch._C.TensorBase.to
_Storage: Any = torch.UntypedStorage
_plain_device: Any = torch._C.StorageBase.device


def move(
    simulation: Simulation,
    tensor: Any,
    target: torch.device | None,
    *,
    dtype: Any = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """`tensor` on `target` (None: the CPU), copied if necessary."""
    source = device_of(tensor)
    crosses = source != target
    if crosses and target is not None:
        simulation.require(target)
    options.pop("non_blocking", None)
    if options.get("memory_format") is None:
        options.pop("memory_format", None)
    result = _plain_to(tensor, "cpu", dtype or tensor.dtype, copy=copy or crosses, **options)
    simulation.tag(result, target)
    if crosses and result.grad_fn is not None:
        return_gradient(simulation, result.grad_fn, source)
    return result


@handles(_tensor.to)
def _to(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    first = rest[0] if rest else kwargs.get("other", kwargs.get("device"))
    if isinstance(first, torch.Tensor):
        if not _is_on_cpu(first) or not _is_on_cpu(tensor):
            return func(*args, **kwargs)
        options = _without(kwargs, "other")
        options.update(zip(("non_blocking", "copy"), rest[1:], strict=False))
        return move(simulation, tensor, device_of(first), dtype=first.dtype, **options)
    if first is None or isinstance(first, torch.dtype):
        return simulation.run(func, args, kwargs)
    target = simulation.machine.resolve(first)
    plain = torch.device(first) if isinstance(first, str) else first
    if target is None and (plain.type != "cpu" or not _is_on_cpu(tensor)):
        return func(*args, **kwargs)
    options = _without(kwargs, "device")
    if target is not None and not _is_on_cpu(tensor):
        simulation.require(target)
        return func(tensor, "cpu", *rest[1:], **options)
    options.update(zip(("dtype", "non_blocking", "copy"), rest[1:], strict=False))
    return move(simulation, tensor, target, **options)


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != name}


def _is_on_cpu(tensor: Any) -> bool:
    """Whether the real device of `tensor` is the CPU."""
    with torch._C.DisableTorchFunction():
        return bool(tensor.device.type == "cpu")


@handles(_tensor.cuda)
def _cuda(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    names = ("self", "device", "non_blocking", "memory_format")
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor = options.pop("self")
    target = simulation.machine.resolve_cuda(options.pop("device", None))
    if not _is_on_cpu(tensor):
        simulation.require(target)
        return tensor.to("cpu")
    return move(simulation, tensor, target, **options)


@handles(_tensor.cpu)
def _cpu(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if device_of(args[0]) is None:
        return func(*args, **kwargs)
    return move(simulation, args[0], None, **kwargs)


@handles(_tensor.copy_)
def _copy(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[1] if len(args) > 1 else kwargs.get("src")
    result = simulation.run(func, args, kwargs, mixed=True)
    if isinstance(source, torch.Tensor) and source.requires_grad and torch.is_grad_enabled():
        place = device_of(source)
        if place != device_of(args[0]) and result.grad_fn is not None:
            return_gradient(simulation, result.grad_fn, place, position=1)
    return result


@handles(_tensor.type_as)
def _type_as(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return move(simulation, args[0], device_of(other), dtype=other.dtype)


@handles(_tensor.type)
def _type(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    if wanted is None:
        return type_name(tensor)
    if isinstance(wanted, torch.dtype):
        return simulation.run(func, args, kwargs)
    name = _name_of(wanted)
    plain = name.replace("torch.cuda.", "torch.")
    kind = getattr(torch, plain.removeprefix("torch."), None)
    if kind is None:
        raise ValueError(f"invalid type: '{wanted}'")
    target = None
    if plain != name:
        target = device_of(tensor) or simulation.machine.resolve_cuda(None)
    return move(simulation, tensor, target, dtype=kind.dtype)


def _name_of(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"


@handles(torch.tensor, torch.as_tensor, torch.asarray)
def _from_data(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """By default, tensors keep their device; numbers go to the CPU."""
    options = {**dict(zip(("data", "dtype", "device"), args, strict=False)), **kwargs}
    data = options.pop("data", None)
    data = options.pop("obj", data)
    device = options.pop("device", None)
    is_tensor = isinstance(data, torch.Tensor)
    place = device_of(data) if is_tensor else None
    if device is None and not is_tensor:
        device = torch.utils._device.CURRENT_DEVICE
    target = place if device is None else simulation.machine.resolve(device)
    if device is not None and target is None and torch.device(device).type != "cpu":
        return func(*args, **kwargs)
    pinned = options.pop("pin_memory", False)
    if target is not None:
        simulation.require(target)
    if func is not torch.tensor and target != place:
        options["copy"] = True
        func = torch.asarray
    result = func(data, **options, device="cpu")
    simulation.tag(result, target)
    if pinned:
        simulation.machine.pin()
        placement.set_pinned(result.untyped_storage())
    return result


@handles(_tensor.new_tensor)
def _new_tensor(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    target = device_of(args[0]) if device is None else simulation.machine.resolve(device)
    if target is not None:
        simulation.require(target)
    result = func(*args, **_without(kwargs, "device"))
    simulation.tag(result, target)
    return result


@handles(_tensor.pin_memory)
def _pin_memory(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if device_of(tensor) is not None:
        raise RuntimeError(
            f"cannot pin 'torch.cuda.{tensor.type().removeprefix('torch.')}' only dense CPU "
            "tensors can be pinned"
        )
    if placement.is_pinned(tensor.untyped_storage()):
        return tensor
    simulation.machine.pin()
    result = tensor.clone()
    placement.set_pinned(result.untyped_storage())
    return result


# -- tensor types by name: torch.cuda.FloatTensor ------------------------------------------------


class _TensorType(type):
    plain: Any
    is_cuda: bool

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.is_cuda:
            args = tuple(one.cpu() if isinstance(one, torch.Tensor) else one for one in args)
            return cls.plain(*args, **kwargs).cuda()
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].is_cuda:
            raise TypeError(f"expected torch.{cls.__name__} (got {args[0].type()})")
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.plain.dtype
            and instance.is_cuda == cls.is_cuda
            and instance.layout is torch.strided
        )


_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


def _install_types(replaced: Replacements) -> None:
    for name in (f"{kind}Tensor" for kind in _TYPES):
        plain = getattr(torch, name)
        for owner in (torch.cuda, torch):
            members = {
                "plain": plain,
                "dtype": plain.dtype,
                "layout": torch.strided,
                "is_cuda": owner is torch.cuda,
                "__module__": owner.__name__,
            }
            replaced.put(owner, **{name: _TensorType(name, (), members)})

    def set_default_tensor_type(original: Any, t: Any) -> None:
        name = _name_of(t)
        if name.startswith("torch.cuda."):
            torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
            torch.set_default_device("cuda")
        else:
            original(name)
            torch.set_default_device(None)

    replaced.wrap(torch, "set_default_tensor_type", set_default_tensor_type)


# -- copies between GPUs, as `nn.DataParallel` and `torch.cuda.comm` make them -------------------


def _by_index(device: int) -> torch.device:
    return placement.CPU if device < 0 else torch.device("cuda", device)


def _broadcast(tensor: Any, devices: Sequence[int]) -> list[Any]:
    return [tensor.to(_by_index(device)) for device in devices]


def _broadcast_coalesced(
    tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
) -> list[list[Any]]:
    return [[tensor.to(_by_index(device)) for tensor in tensors] for device in devices]


def _broadcast_out(tensor: Any, out: Sequence[Any]) -> list[Any]:
    return [one.copy_(tensor) for one in out]


def _scatter(
    tensor: Any, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Any
) -> tuple[Any, ...]:
    chunks = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
    return tuple(
        chunk.to(_by_index(device)) for chunk, device in zip(chunks, devices, strict=False)
    )


def _scatter_out(tensor: Any, out: Sequence[Any], dim: int, streams: Any) -> tuple[Any, ...]:
    chunks = tensor.split([one.size(dim) for one in out], dim)
    return tuple(one.copy_(chunk) for one, chunk in zip(out, chunks, strict=True))


def _gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
    device = _by_index(torch.cuda.current_device() if destination is None else destination)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Any], out: Any, dim: int) -> Any:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


# -- untyped storages: `torch.save`, `torch.load`, deep copies and `torch.multiprocessing` --------


def _install_storages(simulation: Simulation, replaced: Replacements) -> None:
    machine = simulation.machine
    plain_to, plain_share, plain_is_shared = (
        getattr(_Storage, name) for name in ("to", "share_memory_", "is_shared")
    )

    def device(self: Any) -> torch.device:
        if local.depth:
            return _real_device(self)
        return storage_device(self) or _real_device(self)

    def is_cuda(self: Any) -> bool:
        return bool(device(self).type == "cuda")

    def placed(storage: Any, place: torch.device | None) -> Any:
        if place is not None:
            placement.set_storage_device(storage, place, machine.memory)
        return storage

    def clone(self: Any) -> Any:
        return placed(_copy_storage(self), storage_device(self))

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        place = machine.resolve(device)
        on_cpu = place is None and torch.device(device).type == "cpu"
        if place == storage_device(self) and (place or on_cpu):
            return self
        if place is None and not on_cpu:
            return plain_to(self, device=device, non_blocking=non_blocking)
        if place is not None and not machine.in_bad_fork:  # in a fork, its use is refused
            simulation.require(place)
        return placed(_copy_storage(self), place)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return to(self, device=machine.resolve_cuda(device))

    def cpu(self: Any) -> Any:
        return self if storage_device(self) is None else _copy_storage(self)

    def share_memory_(self: Any) -> Any:
        return self if storage_device(self) is not None else plain_share(self)

    def is_shared(self: Any) -> bool:
        return storage_device(self) is not None or bool(plain_is_shared(self))

    def is_pinned(self: Any, device: Any = None) -> bool:
        return placement.is_pinned(self)

    def pin_memory(self: Any, device: Any = None) -> Any:
        machine.pin()
        copied = _copy_storage(self)
        placement.set_pinned(copied)
        return copied

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        place = machine.resolve(kwargs.get("device"))
        if place is None:
            return torch._C.StorageBase.__new__(cls, *args, **kwargs)
        if not local.depth:
            simulation.require(place)
        made = torch._C.StorageBase.__new__(cls, *args, **{**kwargs, "device": "cpu"})
        return made if local.depth else placed(made, place)

    for function in (clone, to, cuda, cpu, share_memory_, is_shared, is_pinned, pin_memory):
        name = function.__name__
        functools.update_wrapper(function, getattr(_Storage, name), updated=())
        replaced.put(_Storage, **{name: function})

    def _share_cuda_(self: Any) -> tuple[Any, ...]:
        place = storage_device(self)
        assert place is not None
        return (place.index, _Handle(self), self.nbytes(), 0, None, 0, None, False)

    def rebuild_cuda_tensor(
        _: Any, kind: Any, size: Any, stride: Any, offset: Any, __: Any, dtype: Any, *about: Any
    ) -> Any:
        device, handle, requires_grad = about[0], about[1], about[4]
        place = torch.device("cuda", device)
        if not machine.in_bad_fork:  # in a fork, its use is refused
            simulation.require(place)
        storage = placed(handle.storage, place)
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        with inside_torch():
            tensor = torch._utils._rebuild_tensor(typed, offset, size, stride)
            if kind is torch.nn.Parameter:
                return torch.nn.Parameter(tensor, requires_grad=requires_grad)
            tensor.requires_grad = requires_grad
        return tensor

    replaced.put(
        _Storage,
        device=property(device),
        is_cuda=property(is_cuda),
        __new__=staticmethod(new),
        _share_cuda_=_share_cuda_,
    )
    replaced.wrap(reductions, "rebuild_cuda_tensor", rebuild_cuda_tensor)


class _Handle:
    """A storage that pickling sends by its shared memory."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        local.depth += 1
        try:
            return (open_handle, reductions.reduce_storage(self.storage))
        finally:
            local.depth -= 1


def open_handle(rebuild: Any, arguments: tuple[Any, ...]) -> _Handle:
    """Map the memory of a storage; called by unpickling."""
    return _Handle(rebuild(*arguments))


def _real_device(storage: Any) -> torch.device:
    place: torch.device = _plain_device.__get__(storage)
    return place


def _copy_storage(storage: Any) -> Any:
    device = _real_device(storage)
    made = torch._C.StorageBase.__new__(type(storage), storage.nbytes(), device=device)
    with torch._C.DisableTorchFunction():
        return made.copy_(storage)


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Replace torch's storages, tensor types by name, and copies between GPUs."""
    _install_storages(simulation, replaced)
    _install_types(replaced)
    broadcasts: tuple[Any, ...] = (_broadcast, _broadcast_coalesced, _broadcast_out)
    copies = (*broadcasts, _scatter, _scatter_out, _gather, _gather_out)
    replaced.put(torch._C, **{function.__name__: function for function in copies})
    from torch.cuda import nccl

    replaced.put(nccl, is_available=lambda tensors: False)
