"""Streams and events, with nothing behind them: everything is done when it is asked for."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import time
from typing import Any

import torch

from pytest_gradguard.simulation.errors import CannotSimulate
from pytest_gradguard.simulation.machine import CUDA, Machine
from pytest_gradguard.simulation.replacing import Replacements, standing_for


def install(machine: Machine, replaced: Replacements) -> None:
    """Let `torch.cuda.Stream` and `torch.cuda.Event` be made."""
    numbers = itertools.count(1)
    stream, event = _bases(replaced)

    def new_stream(
        cls: Any,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = CUDA,
        stream_ptr: int | None = None,
        **_: Any,
    ) -> Any:
        machine.start_driver()
        made = object.__new__(cls)
        made.priority = priority
        made.stream_id = next(numbers) if stream_id is None else stream_id
        made.device_index = machine.current if device_index is None else device_index
        made.device_type = device_type
        made.device = torch.device("cuda", made.device_index)
        made.cuda_stream = stream_ptr or made.stream_id
        return made

    def same(self: Any, other: Any) -> bool:
        return (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def priorities(cls: Any = None) -> tuple[int, int]:
        return (0, -5)

    def enter(self: Any) -> Any:
        before = (machine.current, torch.cuda.current_stream(self.device_index))
        entered.setdefault(self, []).append(before)
        torch.cuda.set_stream(self)
        machine.choose(self.device_index)
        return self

    def leave(self: Any, *_: Any) -> None:
        device, before = entered[self].pop()
        torch.cuda.set_stream(before)
        machine.choose(device)

    entered: dict[Any, list[Any]] = {}
    replaced.put_all(
        stream,
        __enter__=enter,
        __exit__=leave,
        __new__=new_stream,
        __init__=_nothing,
        __eq__=same,
        __hash__=lambda self: hash((self.stream_id, self.device_index)),
        query=lambda self: True,
        synchronize=_nothing,
        is_capturing=lambda self: False,
        priority_range=staticmethod(priorities),
    )

    def new_event(cls: Any, enable_timing: bool = False, **_: Any) -> Any:
        made = object.__new__(cls)
        made.enable_timing = enable_timing
        made.recorded = None
        made.cuda_event = 0
        made.device = None
        return made

    def record(self: Any, stream: Any = None) -> None:
        self.recorded = time.perf_counter()
        self.cuda_event = id(self)
        self.device = torch.device("cuda", machine.current if stream is None else 0)

    def elapsed(self: Any, end: Any) -> float:
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.recorded is None or end.recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float((end.recorded - self.recorded) * 1000)

    def handle(self: Any) -> Any:
        raise CannotSimulate("handing a CUDA event to another process")

    replaced.put_all(
        event,
        __new__=new_event,
        __init__=_nothing,
        record=record,
        wait=_nothing,
        query=lambda self: True,
        synchronize=_nothing,
        elapsed_time=elapsed,
        ipc_handle=handle,
    )

    record_stream = torch.Tensor.record_stream

    def recorded(self: Any, stream: Any) -> None:
        if not self.is_cuda:  # torch's own would not know this kind of stream
            record_stream(self, stream)

    replaced.put(torch.Tensor, "record_stream", functools.update_wrapper(recorded, record_stream))
    for kind, cuda in (("Stream", torch.cuda.Stream), ("Event", torch.cuda.Event)):
        replaced.put(torch, kind, _generic(getattr(torch, kind), cuda, machine))


_HEAP_TYPE = 1 << 9


def _bases(replaced: Replacements) -> tuple[Any, Any]:
    """The classes behind `torch.cuda.Stream` and `torch.cuda.Event`.

    A build for the CPU has empty ones in Python there. Those of a build for CUDA cannot be changed:
    there, torch's own module is executed once more, over empty ones.
    """
    core: Any = torch._C
    if core._CudaStreamBase.__flags__ & _HEAP_TYPE:
        return core._CudaStreamBase, core._CudaEventBase
    bases = tuple(type(name, (), {}) for name in ("_CudaStreamBase", "_CudaEventBase"))
    for base in bases:
        replaced.put(core, base.__name__, base)
    spec = importlib.util.spec_from_file_location("torch.cuda.streams", torch.cuda.streams.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("Stream", "ExternalStream", "Event"):
        for owner in (torch.cuda, torch.cuda.streams):
            replaced.put(owner, name, getattr(module, name))
    return bases[0], bases[1]


def _generic(plain: Any, cuda: Any, machine: Machine) -> Any:
    """`torch.Stream` and `torch.Event`: for a GPU, or where no device is named, those of CUDA."""

    def make(device: Any = None, **kwargs: Any) -> Any:
        place = machine.meant("cuda" if device is None else device)
        if place is None:
            return plain(device, **kwargs)
        with torch.cuda.device(place):
            return cuda(**kwargs)

    return standing_for((plain, cuda), make)


def _nothing(self: Any, *_: Any, **__: Any) -> None:
    return None
