"""What stands in for a function of a framework while something is watched, and only notes calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.observing import caller, observed


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

    def begin(*args: Any, **kwargs: Any) -> Any:
        log = current()
        if log is not None and before:
            note(log, caller(), None, *args, **kwargs)
        return log

    def end(log: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        note(log, caller(), result, *args, **kwargs)

    return observed(before=begin, after=None if before else end)
