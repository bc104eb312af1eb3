"""What a forked worker inherits that does not work in it, recorded at the fork.

PyTorch's compute threads are ended before the fork, so that the worker starts its own instead of
waiting for its parent's. `forked` detects in the worker whether it then starts some, which is a
hang without the guard. With TensorFlow and JAX a hang can only be detected (`stuck`).
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
        torch: the forking thread had compute threads of PyTorch, which were ended.
        torch_kept: it had some that could not be ended (an old runtime): the process may hang.
        runtime: another framework's threads were running; they exist only in the parent.
    """

    torch: bool
    torch_kept: bool
    runtime: bool


class _Forking(threading.local):
    inherited: Inherited | None = None
    watched: bool = False
    ended_pool: bool = False  # once started, a pool is inherited by each later fork, too


_forking = _Forking()
inherited: Inherited | None = None
"""What this process has inherited; None if nothing, or if it was not forked."""
children_inherit = False
"""Whether a process forked from this one has inherited any of that."""


def _before() -> None:
    global children_inherit
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
        children_inherit = True


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
    """A block in which this thread forks a process whose function is watched."""
    _forking.watched = True
    try:
        yield
    finally:
        _forking.watched = False


def _by_a_pool(frame: FrameType | None) -> bool:
    """Whether a pool whose tasks are watched is forking its workers here.

    PyTorch's threads are ended only for these forks and for processes that the program starts: the
    guard is not to cure a hang that it would not report.
    """
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in registry.forks_in:
            return True
        frame = frame.f_back
    return False


def may_hang() -> bool:
    """Whether a framework is loaded whose threads may be missing in a forked process."""
    return "torch.nn.parameter" in sys.modules or frameworks.threads_are_up()
