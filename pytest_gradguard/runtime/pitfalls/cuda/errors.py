"""Detects, from the error of a task, an attempt to use a GPU where there is none.

For CuPy and TensorFlow, most of whose work runs no Python code, and for calls that torch refuses
before it initialises CUDA. A task that catches the error and goes on without a GPU is not detected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.pitfalls.cuda.attempts import (
    Attempt,
    error_line,
    fails_by_fork,
    is_unusable,
)

_CUPY = "cupy_backends.cuda.api.runtime"
_TENSORFLOW = "tensorflow.python.framework.errors_impl"
_NO_GPU = frozenset((34, 35, 46, 100, 802, 803, 804))
"""CUDA runtime status codes for "no usable GPU": a stub driver; none, or one too old; all GPUs
in use; no device; a system that is not ready; a driver that does not fit (two codes).

A forked child gets 3, which is not included: see `by_fork`.
"""
_NO_GPU_SAID = re.compile(
    r"CUDA error: (?:CUDA driver is a stub|CUDA driver version is insufficient"
    r"|all CUDA-capable devices are busy|no CUDA-capable device|system not yet initialized"
    r"|system has unsupported display driver|forward compatibility was attempted)"
)
"""The messages for these codes in older releases of torch, whose errors have no code."""
_NO_DEVICE = re.compile(
    r"(Could not satisfy device specification|Unable to find any devices for spec"
    r"|Cannot assign a device for operation).*device:GPU:",
    re.DOTALL,
)
"""TensorFlow's error if it may not run an operation for a GPU on the CPU."""
_TORCH = (RuntimeError, TypeError)
_NOT_BUILT = re.compile(
    r"torch\.cuda\.Stream requires CUDA support"
    r"|Cannot (get CUDA generator|initialize CUDA) without ATen_cuda library"
    r"|PyTorch is not linked with support for cuda devices"
    r"|type torch\.cuda\.\w+ not available"
)
"""The errors of a torch that was built without CUDA."""
_NO_ACCELERATOR = re.compile(
    r"Cannot access accelerator device when none is available"
    r"|pin_memory=True requires a CUDA or other accelerator backend"
)
"""Its errors for the device ``0``, and for pinned memory."""
_CHOOSING = frozenset(("set_device", "_exchange_device"))
"""Functions of ``torch.cuda`` that fail as they select a GPU, with various errors."""
_CHAINED = 10
_COMPILED = (".pyx", ".pxd", ".pxi")


def no_gpu(error: BaseException) -> bool:
    """Whether CuPy raised `error` because there is no GPU."""
    return type(error).__module__ == _CUPY and getattr(error, "status", None) in _NO_GPU


def no_cuda(error: BaseException) -> bool:
    """Whether torch raised `error` because it was built without CUDA, or found no GPU."""
    torch: Any = sys.modules.get("torch")
    compiled = getattr(torch, "_C", None)
    if compiled is None:
        return False
    said = error.args[0] if error.args else None
    if hasattr(compiled, "_cuda_getDeviceCount"):
        # Every use of CUDA initialises it, or tries to; since torch 2.15 a generator for a GPU
        # queries the runtime first.
        own: Any = getattr(torch, "AcceleratorError", None)
        if own is not None:
            return issubclass(type(error), own) and getattr(error, "error_code", None) in _NO_GPU
        return type(said) is str and _NO_GPU_SAID.match(said) is not None
    if type(error) in _TORCH and type(said) is str:
        if _NOT_BUILT.match(said):
            return True
        if _NO_ACCELERATOR.match(said):
            return not HERE.may_have_mps and not getattr(torch.version, "xpu", None)
    return _raised_by(error) in _CHOOSING


def by_fork(error: BaseException) -> str | None:
    """The framework whose CUDA the driver refused only because of the fork, if any."""
    framework = _raising(error)
    return framework if framework and fails_by_fork(framework, error) else None


def after_fork(error: BaseException) -> str | None:
    """The framework whose CUDA fails as in a fork of a process with CUDA, if any."""
    framework = _raising(error)
    return framework if framework and is_unusable(error) else None


def _raising(error: BaseException) -> str | None:
    """The framework whose CUDA may have raised `error`."""
    kind = type(error)
    if kind.__module__ == _CUPY:
        return "cupy"
    return "torch" if kind is RuntimeError or kind.__module__ == "torch" else None


def _raised_by(error: BaseException) -> str | None:
    """The function of ``torch.cuda`` that raised `error`, if any."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_globals.get("__name__") != "torch.cuda":
        return None
    return traceback.tb_frame.f_code.co_name


def attempt_behind(
    error: BaseException, asked: Callable[[BaseException], str | None] | None = None
) -> Iterator[Attempt]:
    """Yield the attempt, at most one, behind the error of a task or one in its chain.

    Args:
        error: the error of the task.
        asked: finds the framework whose attempt an error shows; by default, for lack of a GPU.
    """
    current: BaseException | None = error
    for _ in range(_CHAINED):
        if current is None:
            return
        framework = (asked or _framework)(current)
        if framework is not None:
            if not _from_another_process(current):
                yield _attempt(framework, current)
            return
        current = current.__cause__ or current.__context__


def _from_another_process(error: BaseException) -> bool:
    """Whether a worker of this process raised it, which reported the attempt itself."""
    return type(error.__cause__).__name__.endswith("RemoteTraceback")


def _framework(error: BaseException) -> str | None:
    if no_gpu(error):
        return "cupy"
    if type(error).__module__ == _TENSORFLOW and _NO_DEVICE.search(str(error)):
        return "tensorflow"
    return "torch" if no_cuda(error) else None


def _attempt(framework: str, error: BaseException) -> Attempt:
    frame, line = _user_line(error)
    return Attempt(
        None if frame is None else callsite.file_of(frame),
        line,
        None if frame is None else frame.f_code.co_name,
        error_line(error),
        True,
        framework,
        fails_by_fork(framework, error),
    )


def _user_line(error: BaseException) -> tuple[FrameType | None, int | None]:
    """The user's innermost line in the traceback of `error`."""
    found: tuple[FrameType | None, int | None] = (None, None)
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        # Compiled code names its sources by paths that do not exist on this machine.
        if not frame.f_code.co_filename.endswith(_COMPILED) and callsite.is_users(frame):
            found = (frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
