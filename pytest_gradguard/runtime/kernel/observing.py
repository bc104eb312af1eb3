"""Observes a function of a library: its arguments, its result and its errors.

The function gets the same arguments, and its result and errors reach the caller unchanged, without
a frame of the guard in the traceback. A fault of an observer is one warning; a finding that is to
be raised reaches the caller. Wrappers that replace a result or the work itself, and those where
each microsecond counts, are written by hand.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt, fault, theirs_only, without_this_frame
from pytest_gradguard.runtime.kernel.patching import Patch, on_class

Observer = Callable[..., Any]


def observe(
    owner: Any,
    name: str,
    *,
    before: Observer | None = None,
    after: Observer | None = None,
    failed: Observer | None = None,
    inherited: bool = False,
) -> Patch:
    """The patch by which calls of ``owner.name`` are observed (see `observed`)."""
    wrap = observed(before=before, after=after, failed=failed)
    if not isinstance(owner, type):
        return Patch(owner, name, wrap)

    def wrap_in_class(original: Any) -> Any:
        if isinstance(original, staticmethod):
            return staticmethod(wrap(original.__func__))
        return wrap(on_class(original, owner))

    return Patch(owner, name, wrap_in_class, inherited=inherited)


def observed(
    *, before: Observer | None = None, after: Observer | None = None, failed: Observer | None = None
) -> Callable[[Any], Any]:
    """Makes an observed function from another one.

    With `before`, the others are called only if it did not return None, and get its result as their
    first argument.

    Args:
        before: called before the function, with its arguments.
        after: called with the function's result, and its arguments.
        failed: called with the function's error, and its arguments.
    """

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            begun = None
            if before is not None:
                try:
                    begun = before(*args, **kwargs)
                except Exception as error:
                    with theirs_only:
                        fault(error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                if failed is not None and (before is None or begun is not None):
                    attempt(failed, *(() if before is None else (begun,)), error, *args, **kwargs)
                raise
            if after is not None:
                try:
                    if before is None:
                        after(result, *args, **kwargs)
                    elif begun is not None:
                        after(begun, result, *args, **kwargs)
                except Exception as error:
                    with theirs_only:
                        fault(error)
            return result

        return function

    return wrap


def caller() -> FrameType:
    """The frame that calls an observed function, for use in its `before` or `after`."""
    return sys._getframe(3)
