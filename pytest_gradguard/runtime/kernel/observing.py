"""One way to observe a function of somebody else's: what it is given, what it returns or raises.

The caller gets what the function returns or raises as it is, without a frame of the guard's in the
traceback. An observer may have other arguments go in, or another result come out. A fault of an
observer is one warning, and the call goes on with the caller's arguments, or gives the function's
own result; a finding that is to be raised reaches the caller. Where the work is done in another
way or within a context, and where each microsecond counts, the wrapper is written out.
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
    """What makes a function that is observed from one that is not.

    With `before`, the others are called only where it did not return None, and get what it
    returned as their first argument.

    Args:
        before: called before the function, with its arguments.
        arguments: called next; returns what the function and the others get instead, or None.
        after: called with what the function has returned, and its arguments.
        result: in place of `after`; returns what the caller gets instead, or None.
        failed: called with what the function has raised, and its arguments.
    """
    ended = after or result

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            begun = None
            try:
                if before is not None:
                    begun = before(*args, **kwargs)
                    if arguments is not None and begun is not None:
                        args, kwargs = arguments(begun, *args, **kwargs) or (args, kwargs)
                elif arguments is not None:
                    args, kwargs = arguments(*args, **kwargs) or (args, kwargs)
            except Exception as error:
                with theirs_only:
                    fault(error)
            try:
                outcome = original(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                if failed is not None and (before is None or begun is not None):
                    attempt(failed, *(() if before is None else (begun,)), error, *args, **kwargs)
                raise
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
    """The frame that calls an observed function, asked in an observer other than `failed`."""
    return sys._getframe(3)
