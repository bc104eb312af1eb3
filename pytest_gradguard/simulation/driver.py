"""What `torch.cuda` asks of its C++ half, answered by the simulated machine.

torch's own Python code for CUDA stays as it is, and with it its checks and its errors: lazy
initialisation, device numbers, memory statistics, seeds. Only the functions below it are put in
place, those that a build for the CPU lacks. What else of the kind a program asks for is refused.
"""

from __future__ import annotations

from collections import defaultdict
from inspect import isroutine
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from pytest_gradguard.runtime.pitfalls.cuda import attempts
from pytest_gradguard.simulation import randomness
from pytest_gradguard.simulation.errors import NoSuchDriverCall, refusing
from pytest_gradguard.simulation.machine import CUDA, Machine
from pytest_gradguard.simulation.memory import TOTAL
from pytest_gradguard.simulation.replacing import Replacements

NAME = "gradguard simulated GPU"
CAPABILITY = (8, 0)
_CUDA = "12.8"
_WORKSPACE = 8519680
"""How many bytes cuBLAS works in, where nobody sets it."""


_NOTHING = (
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
"""Functions that have nothing to do here."""


class Properties(SimpleNamespace):
    """What ``torch.cuda.get_device_properties`` gives."""

    def __init__(self, index: int) -> None:
        super().__init__(
            name=NAME,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
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
            gcnArchName=NAME,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


class _Status(int):
    """What the CUDA runtime returns: 0 for success."""

    success = 0
    value = property(int)


class Runtime(SimpleNamespace):
    """What ``torch.cuda.cudart()`` gives."""

    def __init__(self, machine: Machine) -> None:
        def info(device: int = 0) -> tuple[int, int]:
            return machine.memory.free_bytes(device), TOTAL

        super().__init__(
            cudaError=_Status,
            cudaGetErrorString=lambda code: f"CUDA error {int(code)}",
            cudaMemGetInfo=info,
            cudaProfilerStart=lambda: _Status(0),
            cudaProfilerStop=lambda: _Status(0),
            cudaHostRegister=lambda *_: _Status(0),
            cudaHostUnregister=lambda *_: _Status(0),
        )


def install(machine: Machine, replaced: Replacements) -> None:
    """Put the simulated driver below `torch.cuda`."""
    cuda: Any = torch.cuda
    core: ModuleType = torch._C
    functions = _functions(machine)
    for name, value in list(vars(core).items()):
        if name.startswith("_cuda_") and name not in functions and isroutine(value):
            functions[name] = refusing(
                f"torch._C.{name}"
            )  # a build for CUDA would ask a real driver
    replaced.put_all(core, **functions)
    replaced.put(core, "__getattr__", _missing)
    replaced.put(cuda, "_cudart", Runtime(machine))
    replaced.put(cuda, "_exchange_device", functions["_cuda_exchangeDevice"])
    replaced.put(cuda, "_maybe_exchange_device", functions["_cuda_maybeExchangeDevice"])
    replaced.put(cuda, "_get_device_properties", Properties)
    replaced.put(cuda, "_CudaDeviceProperties", Properties)
    replaced.put(cuda, "_is_in_bad_fork", lambda: machine.in_bad_fork)
    if hasattr(cuda.graphs, "_cuda_isCurrentStreamCapturing"):
        replaced.put(cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
    replaced.put(cuda, "_raw_device_count_nvml", lambda: machine.devices)
    replaced.put(cuda, "_raw_device_uuid_nvml", lambda: None)
    replaced.put(cuda, "_cached_device_count", None, changes=True)
    replaced.put(cuda, "_initialized", False, changes=True)
    replaced.put(cuda, "_queued_calls", list(cuda._queued_calls))
    replaced.put(cuda, "_lazy_seed_tracker", torch._utils._LazySeedTracker())
    replaced.put(cuda, "default_generators", (), changes=True)
    if torch.version.cuda is None:
        replaced.put(torch.version, "cuda", _CUDA)
    replaced.put(torch.backends.cuda, "is_built", lambda: True)
    replaced.put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    _plan_caches(replaced)


def _plan_caches(replaced: Replacements) -> None:
    """``torch.backends.cuda.cufft_plan_cache``: sizes that can be set, and plans that never are."""
    sizes: defaultdict[int, int] = defaultdict(lambda: 4096)
    cache: Any = torch.backends.cuda.cuFFTPlanCache

    def limit(self: Any) -> int:
        return sizes[self.device_index]

    def limited(self: Any, size: int) -> None:
        sizes[self.device_index] = size

    replaced.put(cache, "size", property(lambda self: 0))
    replaced.put(cache, "max_size", property(limit, limited))
    replaced.put(cache, "clear", lambda self: None)


class _Setting:
    """A value that can be set, and that nothing here heeds."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, *_: Any) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        self._value = value


def _missing(name: str) -> Any:
    if name.startswith("_cuda_"):
        raise NoSuchDriverCall(name)
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def _functions(machine: Machine) -> dict[str, Any]:
    memory = machine.memory

    def init() -> None:
        machine.initialise()
        cuda: Any = torch.cuda
        cuda.default_generators = randomness.default_generators(machine)

    def count() -> int:
        attempts.started("question")
        return machine.count()

    def choose(index: int) -> None:
        torch.cuda._lazy_init()
        machine.choose(index)

    def exchange(index: int) -> int:
        if index >= 0:
            torch.cuda._lazy_init()
        return machine.exchange(index)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    limit, workspace = _Setting(10), _Setting(_WORKSPACE)
    return {
        "_cuda_init": init,
        "_cuda_get_cudnn_benchmark_limit": limit.get,
        "_cuda_set_cudnn_benchmark_limit": limit.set,
        "_cuda_getCublasWorkspaceSize": workspace.get,
        "_cuda_setCublasWorkspaceSize": workspace.set,
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": lambda: machine.current,
        "_cuda_setDevice": choose,
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
        "_cuda_setStream": machine.choose_stream,
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
        "_accelerator_setDeviceIndex": machine.choose,
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
        **dict.fromkeys(_NOTHING, nothing),
    }
