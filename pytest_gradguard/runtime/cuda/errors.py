"""What the error of a task tells of an attempt to use a GPU where there is none.

For CuPy and TensorFlow, most of whose work no Python code sees. A task that catches the error
itself, and goes on without a GPU, is not heard of this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import CodeType

from pytest_gradguard.runtime import callsite
from pytest_gradguard.runtime.cuda.attempts import Attempt, told

_CUPY = "cupy_backends.cuda.api.runtime"
_TENSORFLOW = "tensorflow.python.framework.errors_impl"
_NO_GPU = frozenset((34, 35, 46, 100, 802, 803, 804))
"""The states of CUDA's runtime that say: there is no GPU for this process. (A stub instead of the
driver; none, or one too old; all in use; no device; a system that is not ready; a driver that does
not fit, twice.) A forked child gets 3, which is not among them: there the fork is reported."""
_NO_DEVICE = re.compile(
    r"(Could not satisfy device specification|Unable to find any devices for spec"
    r"|Cannot assign a device for operation).*device:GPU:",
    re.DOTALL,
)
"""What TensorFlow says where it may not run on the CPU what asks for a GPU."""
_CHAINED = 10
_COMPILED = (".pyx", ".pxd", ".pxi")


def no_gpu(error: BaseException) -> bool:
    """Whether CuPy raised `error` because there is no GPU."""
    return type(error).__module__ == _CUPY and getattr(error, "status", None) in _NO_GPU


def attempt_behind(error: BaseException) -> Iterator[Attempt]:
    """The attempt, at most one, that ended in the error of a task, or in what that came from."""
    current: BaseException | None = error
    for _ in range(_CHAINED):
        if current is None:
            return
        framework = _framework(current)
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
    return None


def _attempt(framework: str, error: BaseException) -> Attempt:
    code, line = _user_line(error)
    return Attempt(
        None if code is None else code.co_filename,
        line,
        None if code is None else code.co_name,
        told(error),
        True,
        framework,
    )


def _user_line(error: BaseException) -> tuple[CodeType | None, int | None]:
    """The innermost line of the user's own on the way to `error`."""
    found: tuple[CodeType | None, int | None] = (None, None)
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # Compiled code names its sources by paths that are nowhere on this machine.
        if not code.co_filename.endswith(_COMPILED) and callsite.is_user_file(code.co_filename):
            found = (code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
