"""Observes a function of a library: its arguments, its result and its errors.

The caller gets the function's result or error unchanged, without a frame of the guard in the
traceback; an observer may replace the arguments or the result. A fault of an observer is one
warning, and the call goes on as it was made; a finding that is to be raised reaches the caller.
Wrappers that do the work in another way or within a context, and those where each microsecond
counts, are written by hand.
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
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a function is called with."""


def observe(owner: Any, name: str, *, inherited: bool = False, **observers: Observer) -> Patch:
    """The patch by which calls of ``owner.name`` are observed; `observed` says by whom."""
    wrap = observed(**observers)
    if not isinstance(owner, type):
        return Patch(owner, name, wrap)

    def wrap_in_class(original: Any) -> Any:
        if isinstance(original, staticmethod):
            return staticmethod(wrap(original.__func__))
        return wrap(on_class(original, owner))

    return Patch(owner, name, wrap_in_class, inherited=inherited)


def observed(
    *,
    before: Observer | None = None,
    arguments: Observer | None = None,
    after: Observer | None = None,
    result: Observer | None = None,
    failed: Observer | None = None,
) -> Callable[[Any], Any]:
    """Makes an observed function from another one.

    With `before`, the others are called only if it did not return None, and get its result as their
    first argument.

    Args:
        before: called before the function, with its arguments.
        arguments: called next; returns the arguments for the function and the others, or None.
        after: called with the function's result, and its arguments.
        result: in place of `after`; returns the caller's result, or None.
        failed: called with the function's error, and its arguments.
    """
    ended = after or result

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            begun = unfit = None
            try:
                if before is not None:
                    begun = before(*args, **kwargs)
                    if arguments is not None and begun is not None:
                        args, kwargs = arguments(begun, *args, **kwargs) or (args, kwargs)
                elif arguments is not None:
                    args, kwargs = arguments(*args, **kwargs) or (args, kwargs)
            except Exception as error:
                if isinstance(error, TypeError) and not error.__traceback__.tb_next:  # type: ignore[union-attr]
                    unfit = error  # the arguments do not fit the observer, nor the function perhaps
                else:
                    with theirs_only:
                        fault(error)
            try:
                outcome = original(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                if failed is not None and (before is None or begun is not None):
                    attempt(failed, *(() if before is None else (begun,)), error, *args, **kwargs)
                raise
            if unfit is not None:
                attempt(fault, unfit)
            if ended is not None and (before is None or begun is not None):
                try:
                    if before is None:
                        other = ended(outcome, *args, **kwargs)
                    else:
                        other = ended(begun, outcome, *args, **kwargs)
                    if other is not None and result is not None:
                        return other
                except Exception as error:
                    with theirs_only:
                        fault(error)
            return outcome

        return function

    return wrap


def caller() -> FrameType:
    """The frame that calls an observed function, for use in an observer other than `failed`."""
    return sys._getframe(3)
