"""A call that hands work to workers begins: by the program, or by a library on its own."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

from pytest_gradguard.runtime.kernel import calls, callsite, frameworks, packages
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.registry import Workers


class Family:
    """The calls that give single tasks to one pool, while any of their results is alive."""

    def __init__(self) -> None:
        self.token = next(calls.tokens)


_families: weakref.WeakValueDictionary[tuple[int, int], Family] = weakref.WeakValueDictionary()


_NONE: frozenset[str] = frozenset()


def begin(
    workers: Workers, passing: frozenset[str] = _NONE, *, single: object = None
) -> Call | None:
    """The record of a call that begins, or None if the guard ignores it.

    Args:
        workers: the kind of workers that the tasks go to.
        passing: the packages through which the program reaches these workers.
        single: the pool, if the call gives one task to it, and others may give more.
    """
    call = calls.begin() if _is_the_program(passing) else None
    if call is None or call.site is None:
        return None
    call.kind = workers
    call.in_librarys_pool = _is_a_librarys_pool(passing)
    if single is not None:
        call.shared = _families.setdefault((id(single), id(call.collector)), Family())
    frameworks.watch_reductions()  # a standard pickler copies its table before it pickles the task
    return call


_POOLS = frozenset(("pytest_gradguard", "multiprocess", "billiard", "loky"))


def _is_a_librarys_pool(passing: frozenset[str]) -> bool:
    """Whether a library gives the pool its tasks, as `datasets` and pathos do."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not (package in sys.stdlib_module_names or package in _POOLS or package in passing):
            return not callsite.is_users(frame)
        frame = frame.f_back
    return False


def _is_the_program(passing: frozenset[str]) -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
        known = packages.is_program(name if isinstance(name, str) else "", passing)
        if known is not None:
            return known
    return False
