"""Queries NVIDIA's driver for the GPU memory of this process, without creating a context.

It uses the driver's own library, as torch does: every machine with a driver has it. Processes are
listed with the second version of the call: unlike that of the third, its structure has never
changed between drivers.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from pytest_gradguard.platforms import HERE

_LIBRARY = "libnvidia-ml.so.1"
_SECONDS = 2.0
"""How long to wait for the driver's answer."""
_SUCCESS, _NO_PERMISSION, _INSUFFICIENT_SIZE = 0, 4, 7
_NOT_AVAILABLE = 2**64 - 1
_NO_INSTANCE = 2**32 - 1
_MORE = 8
"""Room for processes that start between the two calls."""


class Unknown(Exception):
    """The driver does not report the memory."""


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_v2_t`` of nvml.h."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def used_here() -> int:
    """How many bytes of GPU memory this process holds, on all GPUs together.

    Raises:
        Unknown: there is no driver, it does not answer, or it may mean another process.
    """
    answer: list[int] = []

    def ask() -> None:
        try:
            answer.append(_ask())
        except (Unknown, OSError, AttributeError):  # no such library, or it lacks the function
            pass

    thread = threading.Thread(target=ask, name="gradguard asks the driver", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if not answer:
        raise Unknown
    return answer[0]


def _ask() -> int:
    library = ctypes.CDLL(_LIBRARY)
    _check(library.nvmlInit_v2())  # reference-counted: the program's NVML stays initialised
    try:
        count = ctypes.c_uint()
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        return sum(_used_on(library, index) for index in range(count.value))
    finally:
        library.nvmlShutdown()


def _check(status: int) -> None:
    if status != _SUCCESS:
        raise Unknown


def _used_on(library: Any, index: int) -> int:
    device = ctypes.c_void_p()
    status = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    if status == _NO_PERMISSION:
        return 0  # this process cannot use that GPU either
    _check(status)
    processes = _processes(library, device)
    if not all(map(_is_here, processes)):
        raise Unknown
    own = [process for process in processes if process.pid == os.getpid()]
    for process in own:
        # A part of a GPU (MIG) says nothing about the whole.
        if process.used_memory == _NOT_AVAILABLE or process.gpu_instance != _NO_INSTANCE:
            raise Unknown
    return sum(process.used_memory for process in own)


def _processes(library: Any, device: ctypes.c_void_p) -> list[_Process]:
    """The processes that compute on a GPU."""
    ask = library.nvmlDeviceGetComputeRunningProcesses_v2
    count = ctypes.c_uint(0)
    status = ask(device, ctypes.byref(count), None)
    if status == _SUCCESS:
        return []
    if status != _INSUFFICIENT_SIZE:
        raise Unknown
    count = ctypes.c_uint(count.value + _MORE)
    processes = (_Process * count.value)()
    _check(ask(device, ctypes.byref(count), processes))
    return list(processes[: count.value])


def _is_here(process: _Process) -> bool:
    """Whether `process` is visible from this process.

    In a container many drivers list processes by their host pids. This process is then listed under
    an unknown pid, and the one with its pid is another process.
    """
    return process.pid == 0 or HERE.is_visible(process.pid)
