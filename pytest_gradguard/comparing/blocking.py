"""Detects an inline task that waits for a later event."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from pytest_gradguard.findings import display_place
from pytest_gradguard.runtime.kernel import callsite, inline

_WAITING = tuple(
    os.path.join("", *parts)
    for parts in (
        ("multiprocessing", "connection.py"),
        ("multiprocessing", "queues.py"),
        ("multiprocessing", "synchronize.py"),
        ("multiprocess", "connection.py"),
        ("multiprocess", "queues.py"),
        ("multiprocess", "synchronize.py"),
        ("threading.py",),
        ("queue.py",),
        ("selectors.py",),
        ("socket.py",),
    )
)
"""The files whose functions wait."""
_PAUSE = 0.2


def watch(patience: float, blocked: Callable[[str], object]) -> Callable[[], object]:
    """Call `blocked`, with the reason and place, once a task has waited for so many seconds.

    Returns:
        A function that ends that.
    """
    stopped = threading.Event()
    arguments = (threading.get_ident(), patience, blocked, stopped)
    threading.Thread(target=_watch, args=arguments, daemon=True).start()
    return stopped.set


def _watch(
    main: int, patience: float, blocked: Callable[[str], object], stopped: threading.Event
) -> None:
    since, known = 0.0, None
    while not stopped.wait(_PAUSE):
        frame = sys._current_frames().get(main)
        if frame is None or not (inline.state.depth and _waits(frame)):
            known = None
        elif (id(frame), frame.f_lasti) != known:
            known, since = (id(frame), frame.f_lasti), time.monotonic()
        elif time.monotonic() - since > patience:
            blocked(f"waits for others{_where(frame)}")
            return


def _waits(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_WAITING)


def _where(frame: FrameType) -> str:
    users = callsite.user_frames(frame, 1)
    if not users:
        return ""
    location = callsite.site_of(users[0]).location()
    return f" at {display_place(location.path, location.line)}"
