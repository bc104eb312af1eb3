"""A worker process answers for a task that will never have an outcome of its own."""

from __future__ import annotations

from types import FrameType

from pytest_gradguard.runtime.kernel import registry


def answer(frame: FrameType | None, error: BaseException) -> bool:
    """Send `error` to the parent as the outcome of the task that runs in `frame`'s thread."""
    while frame is not None:
        answers = registry.runners.get(frame.f_globals.get("__name__", ""), {})
        if frame.f_code.co_name in answers:
            answers[frame.f_code.co_name](frame, error)
            return True
        frame = frame.f_back
    return False
