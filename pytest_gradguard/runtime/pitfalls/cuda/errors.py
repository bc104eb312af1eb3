"""What the error of a task tells of an attempt to use a GPU where there is none.

For CuPy and TensorFlow, most of whose work no Python code sees, and for what torch refuses before
it comes to initialise CUDA. A task that catches the error itself, and goes on without a GPU, is not
heard of this way.
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
    fails_by_fork,
    is_unusable,
    told,
)

_CUPY = "cupy_backends.cuda.api.runtime"
_TENSORFLOW = "tensorflow.python.framework.errors_impl"
_NO_GPU = frozenset((34, 35, 46, 100, 802, 803, 804))
"""The states of CUDA's runtime that say: there is no GPU for this process. (A stub instead of the
driver; none, or one too old; all in use; no device; a system that is not ready; a driver that does
not fit, twice.) A forked child gets 3, which is not among them: see `by_fork`."""
_NO_GPU_SAID = re.compile(
    r"CUDA error: (?:CUDA driver is a stub|CUDA driver version is insufficient"
    r"|all CUDA-capable devices are busy|no CUDA-capable device|system not yet initialized"
    r"|system has unsupported display driver|forward compatibility was attempted)"
)
"""The same states, in the words of older releases of torch, whose errors have no code."""
_NO_DEVICE = re.compile(
    r"(Could not satisfy device specification|Unable to find any devices for spec"
    r"|Cannot assign a device for operation).*device:GPU:",
    re.DOTALL,
)
"""What TensorFlow says where it may not run on the CPU what asks for a GPU."""
_TORCH = (RuntimeError, TypeError)
_NOT_BUILT = re.compile(
    r"torch\.cuda\.Stream requires CUDA support"
    r"|Cannot (get CUDA generator|initialize CUDA) without ATen_cuda library"
    r"|PyTorch is not linked with support for cuda devices"
    r"|type torch\.cuda\.\w+ not available"
)
"""What a torch that was built without CUDA says of what would use it."""
_NO_ACCELERATOR = re.compile(
    r"Cannot access accelerator device when none is available"
    r"|pin_memory=True requires a CUDA or other accelerator backend"
)
"""What it says of the device ``0``, and of memory that is pinned for a GPU."""
_CHOOSING = frozenset(("set_device", "_exchange_device"))
"""The functions of ``torch.cuda`` that fail there as they choose a GPU, each with another error."""
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
        # All that needs CUDA initialises it, or tries to; since torch 2.15 a generator for a GPU
        # asks the runtime first.
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
    """The framework that the driver refused in this process for nothing but its fork, if any."""
    framework = _raising(error)
    return framework if framework and fails_by_fork(framework, error) else None


def after_fork(error: BaseException) -> str | None:
    """The framework that the driver refused as it does in a fork of a process with CUDA, if any."""
    framework = _raising(error)
    return framework if framework and is_unusable(error) else None


def _raising(error: BaseException) -> str | None:
    """The framework whose CUDA may have raised `error`."""
    kind = type(error)
    if kind.__module__ == _CUPY:
        return "cupy"
    return "torch" if kind is RuntimeError or kind.__module__ == "torch" else None


def _raised_by(error: BaseException) -> str | None:
    """The function of ``torch.cuda`` that raised `error`, if it was one."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_globals.get("__name__") != "torch.cuda":
        return None
    return traceback.tb_frame.f_code.co_name


def attempt_behind(
    error: BaseException, asked: Callable[[BaseException], str | None] | None = None
) -> Iterator[Attempt]:
    """The attempt, at most one, that ended in the error of a task, or in what that came from.

    Args:
        error: what the task raised.
        asked: which framework's attempt an error tells of; by default, one for want of a GPU.
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
    """Whether a worker of this process raised it: it has been heard of there."""
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
        told(error),
        True,
        framework,
        fails_by_fork(framework, error),
    )


def _user_line(error: BaseException) -> tuple[FrameType | None, int | None]:
    """The innermost line of the user's own on the way to `error`."""
    found: tuple[FrameType | None, int | None] = (None, None)
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        # Compiled code names its sources by paths that are nowhere on this machine.
        if not frame.f_code.co_filename.endswith(_COMPILED) and callsite.is_users(frame):
            found = (frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
