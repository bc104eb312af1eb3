"""What stands in for a function of a framework while something is watched, and only notes calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.faults import fault, without_this_frame


def noted(
    current: Callable[[], Any], note: Callable[..., Any], *, before: bool = False
) -> Callable[[Any], Any]:
    """A wrapper that has each call of its function noted; a fault in that is a warning.

    Args:
        current: gives the log that is written now, or None.
        note: called with the log, the caller's frame, what the function returned, and the
            function's own arguments.
        before: it is called before the function, with None for what that returns.
    """

    def tell(log: Any, frame: Any, result: Any, args: Any, kwargs: Any) -> None:
        try:
            note(log, frame, result, *args, **kwargs)
        except Exception as error:
            fault(error)

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            log = current()
            if log is not None and before:
                tell(log, sys._getframe(1), None, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            if log is not None and not before:
                tell(log, sys._getframe(1), result, args, kwargs)
            return result

        return function

    return wrap
