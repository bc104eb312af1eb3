"""The simulated machine: how many GPUs it has, which of them this process sees, and their state.

One machine stands per process while the simulation is on; what really lies in a GPU's driver is
plain attributes here. `torch.cuda` keeps doing its own part on top of it (see `driver`).
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from pytest_gradguard.runtime.pitfalls.cuda import attempts
from pytest_gradguard.simulation.memory import Memory

VARIABLE = "CUDA_VISIBLE_DEVICES"
CUDA = 1
"""The number of the device type, as torch's streams carry it."""

INVALID_ORDINAL = "invalid device ordinal"
INITIALIZATION = "initialization error"
_NO_DEVICE = "no CUDA-capable device is detected"
_NO_GPUS = "No CUDA GPUs are available"
_AUTOGRAD_AND_FORK = (
    "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
    "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
)


class Machine:
    """A machine with simulated GPUs, as one process sees it.

    Attributes:
        devices: how many GPUs it has.
        memory: what lies on each of them.
        touched: `torch.cuda` has asked the driver something: it refuses to work in a forked child.
        in_bad_fork: this process was forked from one where that was so.
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
        """Let it have so many GPUs from now on."""
        self.devices = devices
        self._visible = None

    def count(self) -> int:
        """How many GPUs this process sees; reads the environment the first time, as CUDA does."""
        self.touched = True
        return self._count()

    def _count(self) -> int:
        if self._visible is None:
            self._visible = tuple(self._read_visible())
        return len(self._visible)

    def _read_visible(self) -> list[int]:
        wanted = os.environ.get(VARIABLE)
        if wanted is None:
            return list(range(self.devices))
        seen: list[int] = []
        for part in wanted.split(","):
            try:
                number = int(part)
            except ValueError:
                break  # CUDA ends the list at the first entry that names no device
            if not 0 <= number < self.devices:
                break
            if number in seen:
                return []
            seen.append(number)
        return seen

    def stream(self, device: int) -> tuple[int, int, int]:
        """The current stream of `device`: its number, its device, and the type of that."""
        return (self._thread.streams.get(device, 0), device, CUDA)

    def choose_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream the current one of its device, and that the current device.

        Raises:
            torch.AcceleratorError: there is no such device.
        """
        self._thread.streams[device_index] = stream_id
        self.choose(device_index)

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return self._thread.device

    def choose(self, index: int) -> None:
        """Make `index` the current device of this thread.

        Raises:
            torch.AcceleratorError: there is no such device.
        """
        self.check(index)
        self._thread.device = index

    def exchange(self, index: int) -> int:
        """As `choose`, or nothing where `index` is below 0; the device that was chosen before."""
        if index < 0:
            return -1
        before = self.current
        self.choose(index)
        return before

    def meant(self, device: Any) -> torch.device | None:
        """The GPU that `device` names, with its number; None: it names none, or nothing.

        Raises:
            RuntimeError: it is a string that names no device.
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

    def of_cuda_call(self, device: Any) -> torch.device:
        """The GPU that ``tensor.cuda(device)`` means.

        Raises:
            RuntimeError: it means another device than a GPU.
        """
        if device is None:
            return torch.device("cuda", self.current)
        found = self.meant(device)
        if found is None:
            raise RuntimeError("Invalid device, must be cuda device")
        return found

    def check(self, index: int) -> None:
        """Refuse a device that this process does not see.

        Raises:
            torch.AcceleratorError: there is no such device.
        """
        if not 0 <= index < self._count():
            raise driver_error(INVALID_ORDINAL)

    def initialise(self) -> None:
        """Make a context, as `torch.cuda` does when a GPU is first used.

        Raises:
            torch.AcceleratorError: the driver was started where this process was forked from.
            RuntimeError: there is no GPU.
        """
        self._driver_for(RuntimeError(_NO_GPUS))
        self.touched = True

    def start_driver(self) -> None:
        """Start the driver for a stream or a generator: `torch.cuda` does not hear of it.

        Raises:
            torch.AcceleratorError: as for `initialise`, or there is no GPU.
        """
        self._driver_for(driver_error(_NO_DEVICE))

    def pin(self) -> None:
        """Start the driver for memory that is pinned: `torch.cuda` does not hear of it.

        Raises:
            torch.AcceleratorError, RuntimeError: as for `initialise`.
        """
        self._driver_for(RuntimeError(_NO_GPUS))

    def start_autograd(self) -> None:
        """Start autograd's threads, as the first backward pass does, and the driver with them.

        Raises:
            RuntimeError: the process that this one was forked from had such threads.
        """
        if self._autograd_lost:
            raise RuntimeError(_AUTOGRAD_AND_FORK)
        if not self._autograd_started and not self._driver_lost and self._count():
            self._autograd_started = self._driver_started = True
            attempts.started("backward")

    def _driver_for(self, without: Exception) -> None:
        if self._driver_lost:
            raise driver_error(INITIALIZATION)
        if not self._count():
            raise without
        self._driver_started = True

    def forked(self) -> None:
        """This process is a fork of the one in which the machine stood."""
        self.in_bad_fork = self.in_bad_fork or self.touched
        self._driver_lost = self._driver_lost or self.touched or self._driver_started
        self._autograd_lost = self._autograd_lost or self._autograd_started
        self.memory.forget()


class _Thread(threading.local):
    device = 0

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}


def driver_error(reason: str) -> Exception:
    """The error that torch makes of an error of the driver's."""
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        f"CUDA error: {reason}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    return error
