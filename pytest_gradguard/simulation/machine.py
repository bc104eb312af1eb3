"""The simulated machine: its GPUs, their memory and their visibility."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.pitfalls.cuda import attempts

CUDA = 1
"""The device type in the identity of torch's streams."""
TOTAL = 16 * 2**30
"""Bytes of memory of each simulated GPU."""

INITIALIZATION = "initialization error"
_INVALID_ORDINAL = "invalid device ordinal"
_NO_DEVICE = "no CUDA-capable device is detected"
_NO_GPUS = "No CUDA GPUs are available"
_AUTOGRAD_AND_FORK = (
    "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
    "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
)
ANOTHER_LIBRARY = "handing a GPU tensor to another library"


class CannotSimulate(RuntimeError):
    """The program needs a real GPU here."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"gradguard cannot simulate {what}: the GPU of this run is simulated. Run this part on "
            "a machine that has one."
        )


class CannotSimulateAttribute(CannotSimulate, AttributeError):
    """An attribute that only a real GPU has."""


def refusing(what: str) -> Callable[..., Any]:
    """A function that raises `CannotSimulate` for any arguments."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulate(what)

    return refuse


def driver_error(reason: str) -> Exception:
    """torch's error for an error of the CUDA driver."""
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        f"CUDA error: {reason}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    return error


class _Count:
    """One quantity of the allocator's statistics."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.allocated += amount
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= amount


class _Usage:
    """The memory in use on one GPU."""

    def __init__(self) -> None:
        self.bytes, self.blocks, self.reserved = _Count(), _Count(), _Count()


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Memory:
    """The memory of the GPUs, counted as torch's caching allocator does."""

    def __init__(self) -> None:
        self._usage: defaultdict[int, _Usage] = defaultdict(_Usage)
        # Re-entrant: the garbage collector may free tensors wherever Python allocates.
        self._lock = Lock()

    def allocate(self, device: int, size: int) -> int:
        """Allocate whole blocks for `size` bytes; returns their bytes."""
        size = _round_up(size, 512)
        with self._lock:
            usage = self._usage[device]
            usage.bytes.add(size)
            usage.blocks.add(1)
            missing = usage.bytes.current - usage.reserved.current
            if missing > 0:
                usage.reserved.add(_round_up(missing, 2**21))
        return size

    def free(self, device: int, size: int) -> None:
        """Free what `allocate` returned."""
        with self._lock:
            self._usage[device].bytes.add(-size)
            self._usage[device].blocks.add(-1)

    def empty_cache(self) -> None:
        """Release the reserved memory that is not in use."""
        with self._lock:
            for usage in self._usage.values():
                surplus = usage.reserved.current - _round_up(usage.bytes.current, 2**21)
                if surplus > 0:
                    usage.reserved.add(-surplus)

    def reset_peak(self, device: int) -> None:
        """Reset the peaks of `device` to its current usage."""
        for count in vars(self._usage[device]).values():
            count.peak = count.current

    def reset_accumulated(self, device: int) -> None:
        """Reset the totals of `device`."""
        for count in vars(self._usage[device]).values():
            count.allocated = count.freed = 0

    def free_bytes(self, device: int) -> int:
        """Bytes that the driver reports as free."""
        return TOTAL - self._usage[device].reserved.current

    def stats(self, device: int) -> dict[str, Any]:
        """The result of ``torch._C._cuda_memoryStats``: nested, by pool."""
        with self._lock:
            counts = vars(self._usage[device])
            in_bytes, in_blocks, reserved = (dict(vars(count)) for count in counts.values())
        zero = dict(vars(_Count()))
        values: dict[str, Any] = {
            "allocation": in_blocks,
            "segment": zero,
            "active": in_blocks,
            "inactive_split": zero,
            "allocated_bytes": in_bytes,
            "reserved_bytes": reserved,
            "active_bytes": in_bytes,
            "inactive_split_bytes": zero,
            "requested_bytes": in_bytes,
        }
        return {
            **{
                name: {"all": value, "small_pool": value, "large_pool": zero}
                for name, value in values.items()
            },
            "oversize_allocations": zero,
            "oversize_segments": zero,
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "num_sync_all_streams": 0,
            "num_device_alloc": in_blocks["allocated"],
            "num_device_free": 0,
            "max_split_size": -1,
        }

    def snapshot(self) -> dict[str, Any]:
        """The result of ``torch._C._cuda_memorySnapshot``: one segment per device in use."""
        with self._lock:
            sizes = [
                (device, usage.reserved.current, usage.bytes.current)
                for device, usage in self._usage.items()
            ]
        return {
            "segments": [_segment(*size) for size in sizes if size[1]],
            "device_traces": [],
            "allocator_settings": {},
        }


def _segment(device: int, size: int, active: int) -> dict[str, Any]:
    parts = {"active_allocated": active, "inactive": size - active}
    return {
        "device": device,
        "address": 0,
        "total_size": size,
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {"address": 0, "size": part, "requested_size": part, "state": state, "frames": []}
            for state, part in parts.items()
            if part
        ],
    }


class Machine:
    """A machine with simulated GPUs, as one process sees it.

    Attributes:
        devices: the number of its GPUs.
        memory: their memory.
        touched: `torch.cuda` has called the driver, so a forked child may not use it.
        in_bad_fork: this process was forked from such a process.
    """

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.memory = Memory()
        self.touched = False
        self.in_bad_fork = False
        self._driver_started = False
        self._driver_lost = False
        self._autograd_started = False
        self._autograd_lost = False
        self._visible: tuple[int, ...] | None = None
        self._thread = _Thread()

    def resize(self, devices: int) -> None:
        """Change the number of GPUs."""
        self.devices = devices
        self._visible = None

    def count(self) -> int:
        """The number of visible GPUs; CUDA reads the environment once."""
        self.touched = True
        return self._count()

    def _count(self) -> int:
        if self._visible is None:
            self._visible = tuple(self._read_visible())
        return len(self._visible)

    def _read_visible(self) -> list[int]:
        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        if value is None:
            return list(range(self.devices))
        visible: list[int] = []
        for part in value.split(","):
            try:
                number = int(part)
            except ValueError:
                break  # CUDA ignores the list from its first invalid entry on
            if not 0 <= number < self.devices:
                break
            if number in visible:
                return []
            visible.append(number)
        return visible

    def stream(self, device: int) -> tuple[int, int, int]:
        """The identity of the current stream of `device`."""
        return (self._thread.streams.get(device, 0), device, CUDA)

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream, and its device, the current ones."""
        self._thread.streams[device_index] = stream_id
        self.set_device(device_index)

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return self._thread.device

    def set_device(self, index: int) -> None:
        """Make `index` the current device of this thread."""
        self.check(index)
        self._thread.device = index

    def exchange(self, index: int) -> int:
        """Set the current device unless `index` is negative; returns the previous one."""
        if index < 0:
            return -1
        before = self.current
        self.set_device(index)
        return before

    def resolve(self, device: Any) -> torch.device | None:
        """The GPU that `device` names, with its index; None: no GPU.

        Raises:
            RuntimeError: `device` is a string that names no device.
        """
        if device is None:
            return None
        if not isinstance(device, torch.device):
            if isinstance(device, int) and not isinstance(device, bool):
                if device < 0:
                    raise RuntimeError(f"Device index must not be negative, got {device}")
                return torch.device("cuda", device)
            if not isinstance(device, str):
                return None
            device = torch.device(device)
        if device.type != "cuda":
            return None
        if device.index is None:
            return torch.device("cuda", self.current)
        return device

    def resolve_cuda(self, device: Any) -> torch.device:
        """The GPU that ``tensor.cuda(device)`` names.

        Raises:
            RuntimeError: `device` is not a GPU.
        """
        found = self.resolve("cuda" if device is None else device)
        if found is None:
            raise RuntimeError("Invalid device, must be cuda device")
        return found

    def check(self, index: int) -> None:
        """Raise torch's error for a device that this process does not see."""
        if not 0 <= index < self._count():
            raise driver_error(_INVALID_ORDINAL)

    def initialise(self) -> None:
        """Create a CUDA context, as the first use of a GPU does.

        Raises:
            torch.AcceleratorError: the parent of this forked process had started the driver.
            RuntimeError: there is no GPU.
        """
        self.pin()
        self.touched = True

    def start_driver(self) -> None:
        """Start the driver for a stream or a generator, without `torch.cuda`.

        Raises:
            torch.AcceleratorError: as for `initialise`, or there is no GPU.
        """
        self._start_driver(driver_error(_NO_DEVICE))

    def pin(self) -> None:
        """Start the driver for pinned memory, without `torch.cuda`; raises as `initialise`."""
        self._start_driver(RuntimeError(_NO_GPUS))

    def start_autograd(self) -> None:
        """Start autograd's threads, as the first backward pass does, and the driver.

        Raises:
            RuntimeError: the parent of this forked process had such threads.
        """
        if self._autograd_lost:
            raise RuntimeError(_AUTOGRAD_AND_FORK)
        if not self._autograd_started and not self._driver_lost and self._count():
            self._autograd_started = self._driver_started = True
            attempts.started("backward")

    def _start_driver(self, no_gpu: Exception) -> None:
        if self._driver_lost:
            raise driver_error(INITIALIZATION)
        if not self._count():
            raise no_gpu
        self._driver_started = True

    def after_fork(self) -> None:
        """Lose, in a forked child, what does not survive a fork."""
        self.in_bad_fork = self.in_bad_fork or self.touched
        self._driver_lost = self._driver_lost or self.touched or self._driver_started
        self._autograd_lost = self._autograd_lost or self._autograd_started


class _Thread(threading.local):
    device = 0

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
