"""Modules that forked workers have inherited, and that no pickle names.

A process that the program forks has them in its function and arguments. The workers of a pool have
them in the globals that tasks use, and in the arguments of the pool's initializer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import locate, running, shipped_modules
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.checks import TORCH, Probe, forked_for_tasks
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.tasks import code_of, roots_of
from pytest_gradguard.runtime.kernel.used_globals import values_used_by

NAME = "modules"
"""The probe's name."""
_SEARCHED = 2_000
_WIDE = 256

PROBES = (
    Probe(NAME, __name__, asks=(TORCH,), ships=forked_for_tasks, by_function=True, starts=True),
)


class Inherited(NamedTuple):
    """The modules that a worker has, if it was forked from this process.

    Attributes:
        lineage: that of this process.
        token: the call.
        numbers: those of the modules in the call.
        started: they may be in the arguments, too.
    """

    lineage: str
    token: int
    numbers: frozenset[int]
    started: bool


def ship(call: Call, items: Any) -> Inherited | None:
    """Return the modules that a batch finds in globals."""
    known = call.remembered.setdefault(NAME, {})
    code = code_of(items[0][0]) or type(items[0][0]) if len(items) else None
    if code not in known:
        pool = None if call.pool is None else call.pool()
        given = getattr(pool, "_initargs", None) or ()
        known[code] = _asked(call, [*values_used_by(items), ("", given)], started=False)
    asked: Inherited | None = known[code]
    return asked


def start(call: Call, task: Any, forked: bool) -> Inherited | None:
    """Return the modules that a process has in its function, arguments and globals."""
    return _asked(call, _roots([task]), started=True) if forked else None


def _roots(items: Any) -> list[tuple[str, Any]]:
    return [*roots_of(items), *values_used_by(items)]


def _asked(call: Call, roots: Iterable[tuple[str, Any]], started: bool) -> Inherited | None:
    numbers = frozenset(map(call.number_of, _modules_in(roots)))
    return Inherited(LINEAGE, call.token, numbers, started) if numbers else None


def _modules_in(roots: Iterable[tuple[str, Any]]) -> list[Any]:
    """The modules under `roots` that are not part of another."""
    kind = sys.modules["torch"].nn.Module
    found = []

    def look(item: Any) -> bool:
        if not issubclass(type(item), kind):
            return False
        found.append(item)
        return True

    locate.find(roots, look, limit=_SEARCHED, wide=_WIDE)
    return found


def begin(asked: Inherited, process: bool) -> None:
    """Record, in a forked worker, the inherited modules that the starting tasks may use."""
    if not process or asked.lineage != LINEAGE:
        return
    for items in running.batches():
        for module in _modules_in(_roots(items) if asked.started else values_used_by(items)):
            if id(module) in asked.numbers and _is_readable(module):
                shipped_modules.know(asked.token, id(module), module)


def _is_readable(module: Any) -> bool:
    """Whether its values may be read: CUDA cannot be used in a forked process."""
    return all(one.device.type == "cpu" for one in module.parameters())
