"""The CUDA half of `torch._C`, answered by the simulated machine.

torch's Python code for CUDA is used unchanged, with its lazy initialisation, checks and errors.
Only the functions below it that a CPU build lacks are replaced; others of their kind are refused.
Streams
and events do nothing: every operation is complete when it is called.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from inspect import isroutine
from types import SimpleNamespace
from typing import Any

import torch

from pytest_gradguard.runtime.pitfalls.cuda import attempts
from pytest_gradguard.simulation import numerics
from pytest_gradguard.simulation.machine import (
    CUDA,
    TOTAL,
    CannotSimulate,
    CannotSimulateAttribute,
    Machine,
    refusing,
)
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacements import Replacements, class_facade

_NAME = "gradguard simulated GPU"
_CAPABILITY = (8, 0)
_VERSION = "12.8"
_CUBLAS_WORKSPACE = 8519680
"""cuBLAS's default, in bytes."""

_NO_OPERATION = (
    "_cuda_clearCublasWorkspaces",
    "_cuda_synchronize",
    "_cuda_ipc_collect",
    "_cuda_sleep",
    "_cuda_set_sync_debug_mode",
    "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetAccumulatedHostMemoryStats",
    "_cuda_setMemoryFraction",
    "_cuda_cudaCachingAllocator_enable",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
    "_accelerator_synchronizeDevice",
)


class Properties(SimpleNamespace):
    """The result of ``torch.cuda.get_device_properties``."""

    def __init__(self, index: int) -> None:
        super().__init__(
            name=_NAME,
            major=_CAPABILITY[0],
            minor=_CAPABILITY[1],
            total_memory=TOTAL,
            multi_processor_count=108,
            is_integrated=0,
            is_multi_gpu_board=0,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=166912,
            shared_memory_per_multiprocessor=167936,
            L2_cache_size=41943040,
            clock_rate=1410000,
            memory_clock_rate=1215000,
            memory_bus_width=5120,
            pci_bus_id=index,
            pci_device_id=0,
            pci_domain_id=0,
            uuid=f"00000000-0000-0000-0000-{index:012d}",
            gcnArchName=_NAME,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


class _Status(int):
    """A result of the CUDA runtime; 0 is success."""

    success = 0
    value = property(int)


def _runtime(machine: Machine) -> SimpleNamespace:
    """The result of ``torch.cuda.cudart()``."""
    return SimpleNamespace(
        cudaError=_Status,
        cudaGetErrorString=lambda code: f"CUDA error {int(code)}",
        cudaMemGetInfo=lambda device=0: (machine.memory.free_bytes(device), TOTAL),
        cudaProfilerStart=lambda: _Status(0),
        cudaProfilerStop=lambda: _Status(0),
        cudaHostRegister=lambda *_: _Status(0),
        cudaHostUnregister=lambda *_: _Status(0),
    )


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Put the simulated driver below `torch.cuda`."""
    machine = simulation.machine
    cuda: Any = torch.cuda
    core: Any = torch._C
    functions = _functions(machine)
    for name, value in list(vars(core).items()):
        if name.startswith("_cuda_") and name not in functions and isroutine(value):
            functions[name] = refusing(f"torch._C.{name}")  # on a CUDA build, it calls a driver
    replaced.put(core, **functions, __getattr__=_missing)
    replaced.put(
        cuda,
        _cudart=_runtime(machine),
        _exchange_device=functions["_cuda_exchangeDevice"],
        _maybe_exchange_device=functions["_cuda_maybeExchangeDevice"],
        _get_device_properties=Properties,
        _CudaDeviceProperties=Properties,
        _is_in_bad_fork=lambda: machine.in_bad_fork,
        _raw_device_count_nvml=lambda: machine.devices,
        _raw_device_uuid_nvml=lambda: None,
        _queued_calls=list(cuda._queued_calls),
        _lazy_seed_tracker=torch._utils._LazySeedTracker(),
    )
    replaced.put_volatile(
        cuda, _cached_device_count=None, _initialized=False, default_generators=()
    )
    if hasattr(cuda.graphs, "_cuda_isCurrentStreamCapturing"):
        replaced.put(cuda.graphs, _cuda_isCurrentStreamCapturing=lambda: False)
    if torch.version.cuda is None:
        replaced.put(torch.version, cuda=_VERSION)
    replaced.put(torch.backends.cuda, is_built=lambda: True)
    replaced.put(torch.backends.cudnn, is_acceptable=lambda tensor: False)
    _install_plan_caches(replaced)
    _install_streams(machine, replaced)


def _install_plan_caches(replaced: Replacements) -> None:
    """``torch.backends.cuda.cufft_plan_cache``: empty, with sizes that can be set."""
    sizes: defaultdict[int, int] = defaultdict(lambda: 4096)

    def max_size(self: Any) -> int:
        return sizes[self.device_index]

    def set_max_size(self: Any, size: int) -> None:
        sizes[self.device_index] = size

    replaced.put(
        torch.backends.cuda.cuFFTPlanCache,
        size=property(lambda self: 0),
        max_size=property(max_size, set_max_size),
        clear=_nothing,
    )


def _missing(name: str) -> Any:
    if name.startswith("_cuda_"):
        raise CannotSimulateAttribute(f"torch._C.{name}")
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _setting(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Getter and setter of a value without effect."""
    values = [value]

    def set_value(value: Any) -> None:
        values[0] = value

    return lambda *_: values[0], set_value


def _functions(machine: Machine) -> dict[str, Any]:
    memory = machine.memory

    def init() -> None:
        machine.initialise()
        cuda: Any = torch.cuda
        cuda.default_generators = numerics.default_generators(machine)

    def count() -> int:
        attempts.started("question")
        return machine.count()

    def set_device(index: int) -> None:
        torch.cuda._lazy_init()
        machine.set_device(index)

    def exchange(index: int) -> int:
        if index >= 0:
            torch.cuda._lazy_init()
        return machine.exchange(index)

    get_limit, set_limit = _setting(10)
    get_workspace, set_workspace = _setting(_CUBLAS_WORKSPACE)
    return {
        "_cuda_init": init,
        "_cuda_get_cudnn_benchmark_limit": get_limit,
        "_cuda_set_cudnn_benchmark_limit": set_limit,
        "_cuda_getCublasWorkspaceSize": get_workspace,
        "_cuda_setCublasWorkspaceSize": set_workspace,
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": lambda: machine.current,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_isInBadFork": lambda: machine.in_bad_fork,
        "_cuda_getArchFlags": lambda: "sm_80 sm_90",
        "_cuda_getCompiledVersion": lambda: 12080,
        "_cuda_getDriverVersion": lambda: 12080,
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_canDeviceAccessPeer": lambda one, other: one != other,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_getCurrentStream": machine.stream,
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_cuda_getDefaultStream": lambda device: (0, device, CUDA),
        "_cuda_setStream": machine.set_stream,
        "_cuda_memoryStats": memory.stats,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakMemoryStats": memory.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated,
        "_cuda_memorySnapshot": lambda pool=None: memory.snapshot(),
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_getMemoryFraction": lambda device: 1.0,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: machine.current,
        "_accelerator_setDeviceIndex": machine.set_device,
        "_accelerator_exchangeDevice": machine.exchange,
        "_accelerator_maybeExchangeDevice": machine.exchange,
        "_accelerator_getStream": lambda device: torch.cuda.current_stream(device),
        "_accelerator_setStream": lambda stream: torch.cuda.set_stream(stream),
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_resetAccumulatedStats": memory.reset_accumulated,
        "_accelerator_getMemoryInfo": lambda device: (memory.free_bytes(device), TOTAL),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getAllocatorSettings": str,
        "_get_accelerator": lambda check=False: torch.device("cuda"),
        **dict.fromkeys(_NO_OPERATION, _nothing),
    }


# -- streams and events --------------------------------------------------------------------------


def _install_streams(machine: Machine, replaced: Replacements) -> None:
    numbers = itertools.count(1)
    stream, event = _base_classes(replaced)
    entered: dict[Any, list[Any]] = {}

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

    def enter(self: Any) -> Any:
        before = (machine.current, torch.cuda.current_stream(self.device_index))
        entered.setdefault(self, []).append(before)
        torch.cuda.set_stream(self)
        machine.set_device(self.device_index)
        return self

    def leave(self: Any, *_: Any) -> None:
        device, before = entered[self].pop()
        torch.cuda.set_stream(before)
        machine.set_device(device)

    replaced.put(
        stream,
        __enter__=enter,
        __exit__=leave,
        __new__=new_stream,
        __init__=_nothing,
        __eq__=lambda self, other: _identity(self) == _identity(other),
        __hash__=lambda self: hash(_identity(self)),
        query=lambda self: True,
        synchronize=_nothing,
        is_capturing=lambda self: False,
        priority_range=staticmethod(lambda cls=None: (0, -5)),
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

    def ipc_handle(self: Any) -> Any:
        raise CannotSimulate("handing a CUDA event to another process")

    replaced.put(
        event,
        __new__=new_event,
        __init__=_nothing,
        record=record,
        wait=_nothing,
        query=lambda self: True,
        synchronize=_nothing,
        elapsed_time=elapsed,
        ipc_handle=ipc_handle,
    )

    def record_stream(original: Any, tensor: Any, stream: Any) -> None:
        if not tensor.is_cuda:
            original(tensor, stream)

    replaced.wrap(torch.Tensor, "record_stream", record_stream)
    for name, cuda in (("Stream", torch.cuda.Stream), ("Event", torch.cuda.Event)):
        replaced.put(torch, **{name: _device_generic(getattr(torch, name), cuda, machine)})


def _identity(stream: Any) -> tuple[int, int]:
    return (stream.stream_id, stream.device_index)


_HEAP_TYPE = 1 << 9


def _base_classes(replaced: Replacements) -> tuple[Any, Any]:
    """The classes behind `torch.cuda.Stream` and `torch.cuda.Event`.

    A CPU build has empty Python classes there. Those of a CUDA build cannot be changed: there,
    torch's module is executed again, over empty classes.
    """
    core: Any = torch._C
    if core._CudaStreamBase.__flags__ & _HEAP_TYPE:
        return core._CudaStreamBase, core._CudaEventBase
    bases = tuple(type(name, (), {}) for name in ("_CudaStreamBase", "_CudaEventBase"))
    replaced.put(core, **{base.__name__: base for base in bases})
    spec = importlib.util.spec_from_file_location("torch.cuda.streams", torch.cuda.streams.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for owner in (torch.cuda, torch.cuda.streams):
        names = ("Stream", "ExternalStream", "Event")
        replaced.put(owner, **{name: getattr(module, name) for name in names})
    return bases[0], bases[1]


def _device_generic(plain: Any, cuda: Any, machine: Machine) -> Any:
    """`torch.Stream` or `torch.Event`: by default, and for a GPU, those of CUDA."""

    def make(device: Any = None, **kwargs: Any) -> Any:
        place = machine.resolve("cuda" if device is None else device)
        if place is None:
            return plain(device, **kwargs)
        with torch.cuda.device(place):
            return cuda(**kwargs)

    return class_facade((plain, cuda), make)
