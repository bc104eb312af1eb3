"""What a forked worker inherits that does not work in it, noted at the fork.

PyTorch's compute threads are ended for the fork, so that the worker starts its own instead of
waiting for those of its parent. Whether it then does start some, which without the guard is a hang,
is seen in the worker (`forked`). Nothing can be done for the threads of TensorFlow and JAX
but to notice (`stuck`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from pytest_gradguard.runtime.kernel import frameworks, registry
from pytest_gradguard.runtime.kernel.fork_hook import ForkHook
from pytest_gradguard.runtime.pitfalls.forks import openmp

_DEPTH = 30


class Inherited(NamedTuple):
    """What a forked process has inherited.

    Attributes:
        torch: the forking thread had compute threads of PyTorch's, which were ended.
        torch_kept: the same, but they could not be ended (an old runtime): it may wait for them.
        runtime: that of another framework was up; its threads exist in the parent only.
    """

    torch: bool
    torch_kept: bool
    runtime: bool


class _Forking(threading.local):
    inherited: Inherited | None = None
    watched: bool = False
    ended_pool: bool = False  # once started, a pool stays: each later fork would inherit it, too


_forking = _Forking()
inherited: Inherited | None = None
"""What this process has inherited; None where it was not forked, or inherited nothing of that."""
bequeathed = False
"""Whether this process has forked one that inherited something of that."""


def _before() -> None:
    global bequeathed
    torch = kept = False
    if (_forking.watched or _by_a_pool(sys._getframe(3))) and "torch.nn.parameter" in sys.modules:
        library = openmp.loaded()
        if library is not None and library.pause is None:
            kept = bool(openmp.candidates())
        else:
            torch = openmp.end_pool() or _forking.ended_pool
            _forking.ended_pool = torch
    runtime = frameworks.threads_are_up()
    if torch or kept or runtime:
        _forking.inherited = Inherited(torch, kept, runtime)
        bequeathed = True


def _after_in_parent() -> None:
    _forking.inherited = None
    _forking.watched = False


def _after_in_child() -> None:
    global inherited
    inherited = _forking.inherited
    _after_in_parent()


apply = ForkHook(_before, _after_in_parent, _after_in_child).apply


@contextmanager
def forking() -> Iterator[None]:
    """A block in which this thread forks a process whose function is looked at."""
    _forking.watched = True
    try:
        yield
    finally:
        _forking.watched = False


def _by_a_pool(frame: FrameType | None) -> bool:
    """Whether a pool forks its workers here, whose tasks are looked at.

    PyTorch's threads are ended for those forks only, and for processes that the program starts: a
    hang that nobody would report is not the guard's to cure.
    """
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in registry.forks_in:
            return True
        frame = frame.f_back
    return False


def may_hang() -> bool:
    """Whether something is loaded whose threads may be missing in a forked process."""
    return "torch.nn.parameter" in sys.modules or frameworks.threads_are_up()
