"""A fault of the guard never breaks the user's program: it becomes one warning."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest_gradguard
from pytest_gradguard.messages import GradGuardError, GradGuardWarning

_PACKAGE = os.path.dirname(os.path.abspath(pytest_gradguard.__file__)) + os.sep
_reported = False


def fault(error: BaseException) -> None:
    """Warn once in this process that the guard itself failed; the call goes on unguarded.

    Raises:
        GradGuardError, GradGuardWarning: `error` is one: a finding that the user asked to have
            raised, by mode ``"error"`` or by a warning filter.
    """
    global _reported
    if isinstance(error, (GradGuardError, GradGuardWarning)):
        raise error
    if _reported:
        return
    _reported = True
    warn(f"gradguard itself failed, and the program goes on: {type(error).__name__}: {error}")


def attempt(function: Callable[..., Any], /, *args: Any, instead: Any = None, **kwargs: Any) -> Any:
    """Call a function of the guard; return `instead` if it fails.

    For use wherever the program's own work follows, or later steps have to run in any case.

    Raises:
        GradGuardError, GradGuardWarning: as for `fault`.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        fault(error)
        return instead


def freed(forget: Callable[..., Any], *args: Any) -> Callable[[object], None]:
    """The callback of a weak reference that calls `forget` with `args`.

    It does nothing as the interpreter ends, when modules lose their globals in arbitrary order.
    """

    def call(_: object, ending: Callable[[], bool] = sys.is_finalizing, do: Any = attempt) -> None:
        if not ending():
            do(forget, *args)

    return call


def checked(
    errors: tuple[type[Exception], ...],
    function: Callable[..., Any],
    *args: Any,
    instead: Any = None,
    **kwargs: Any,
) -> Any:
    """As `attempt`, for objects that the program passed to the guard, which may be wrong.

    Args:
        errors: the errors that show so.
        function, args, instead, kwargs: as for `attempt`.

    Raises:
        Exception: one of `errors`; findings, as for `attempt`.
    """
    __tracebackhide__ = True
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, (GradGuardError, GradGuardWarning, *errors)):
            raise
        fault(error)
        return instead


class _Once:
    """Work of the program, and its outcome."""

    __slots__ = ("_work", "done", "error", "outcome")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.done = False
        self.outcome: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        self.done = True
        try:
            self.outcome = self._work()
        except BaseException as error:
            without_this_frame(error)
            self.error = error
            raise
        return self.outcome


def carried(work: Callable[[], Any], doing: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `doing`, of the guard, with `work`, of the program, which it has to call.

    Whatever happens in `doing`, the work is done once, and its result or error is not lost.

    Args:
        work: takes no arguments.
        doing: gets a function that does the work, and `args` and `kwargs`.

    Raises:
        BaseException: the work's error; findings, as for `attempt`.
    """
    once = _Once(work)
    try:
        made = doing(once, *args, **kwargs)
    except BaseException as error:
        if error is once.error:
            without_this_frame(error)
            raise
        if not isinstance(error, Exception):
            raise
        fault(error)
        made = None
    if once.error is not None:
        raise once.error
    if not once.done:
        with hidden_frame:
            return work()
    return once.outcome if made is None else made


class Beside:
    """A context of the guard around the program's code; its faults are handled by `fault`.

    Args:
        make: makes the context manager, or returns None.
        args, kwargs: its arguments.
    """

    def __init__(
        self, make: Callable[..., AbstractContextManager[Any] | None], *args: Any, **kwargs: Any
    ) -> None:
        self._make = functools.partial(make, *args, **kwargs)
        self._context: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        context = attempt(self._make)
        try:
            if context is not None:
                context.__enter__()
                self._context = context
        except Exception as error:
            fault(error)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if self._context is not None:
                self._context.__exit__(kind, error, traceback)
        except Exception as mistake:
            if mistake is not error:
                fault(mistake)


def warn(text: str) -> None:
    """Warn of a problem of the guard itself, and never raise."""
    try:
        try:
            warnings.warn(text, GradGuardWarning, stacklevel=3)
        except GradGuardWarning:  # under -W error, in the middle of a parallel call
            print(GradGuardWarning(text), file=sys.stderr)
    except Exception:  # the program's `showwarning` failed, or standard error is closed
        return


def without_this_frame(error: BaseException) -> None:
    """Remove the calling frame from the traceback of the program's own `error`.

    For an ``except`` block that ends with a bare ``raise``, which adds no frame again: the user
    then sees the traceback of the unguarded program. (Python 3.10 does add it again.)
    """
    traceback = error.__traceback__
    if traceback is not None and traceback.tb_frame is sys._getframe(1):
        error.__traceback__ = traceback.tb_next


class _HiddenFrame:
    """A context whose frame is removed from the tracebacks of the program's errors in it.

    For wrappers that only pass on their arguments; those that run for each small task write out
    `without_this_frame`, which costs nothing unless an error is raised.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        own = None if error is None else error.__traceback__
        if error is not None and own is not None and own.tb_frame is sys._getframe(1):
            error.__traceback__ = own.tb_next


hidden_frame = _HiddenFrame()


class _TheirsOnly:
    """A context that removes the guard's frames from errors that leave it.

    To be entered in the outermost function of the guard that the program calls: the traceback of a
    finding, or of a refusal, then ends at the program's line, or in the library that it called. An
    error of the program's own code begins at its own frame.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (GradGuardError, GradGuardWarning)):
            error.__traceback__ = None
        elif error is not None:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                frames = frames.tb_next
            error.__traceback__ = frames


theirs_only = _TheirsOnly()
