"""GG305 in the workers of a loader: draws from generators that came with the dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.tasks import Task, mentions, task_of
from pytest_gradguard.runtime.pitfalls.random import gg305, random_states, task_code


class LoaderGenerators:
    """The random generators that came with a dataset, and the draws of one worker from them.

    Args:
        loading: the task of the worker: a callable with `iterable` and `collate_fn`.
        forked: the worker inherited the dataset.
    """

    def __init__(self, loading: Any, forked: bool) -> None:
        self._loading = loading
        self._known = _inherited(loading) if forked else gg305.take_arrived()
        if any(mentions(one, _MOVING) for one in (loading, loading.collate_fn)) or (
            loading.iterable and task_code.shuffles_what_workers_share(loading.function)
        ):
            self._known = []
        self._states: list[Any] = []
        self._spawned: list[int] = []
        self._first: list[Any] = []

    def begin(self) -> None:
        """Record their states, before the first sample."""
        try:
            self._states = [random_states.state(one) for _, one in self._known]
            self._spawned = [random_states.spawned(one) for _, one in self._known]
        except Exception as error:
            fault(error)
            self._known = []

    def drawn(self) -> list[gg305.Drawn]:
        """Draws since `begin`, each generator once.

        Draws of an iterable dataset before its first sample are marked `early`: they may have to be
        the same in each worker.
        """
        now = [random_states.state(one) for _, one in self._known]
        task = task_of(self._loading)
        if self._loading.iterable and not self._first:
            self._first = now
            return list(self._early(now, task))
        found, waiting = [], []
        for index, (number, generator) in enumerate(self._known):
            start, end = self._states[index], now[index]
            since = self._first[index] if self._first else start
            if start is None or end is None:
                continue
            kind = random_states.name(generator)
            if since.digest == end.digest:
                before = self._spawned[index]
                if random_states.spawned(generator) == before or self._loading.iterable:
                    waiting.append(index)
                elif task_code.spawns_one(gg305.functions_in(self._loading)):
                    first = gg305.at_child(start.digest, before)
                    found.append(gg305.Drawn(number, kind, first, first, False, task))
                continue
            if random_states.follows(start, end):  # otherwise the dataset has set its state
                drawn = gg305.Drawn(number, kind, start.digest, end.digest, True, task)
                found.append(drawn)
        self._known = [self._known[index] for index in waiting]
        self._states = [self._states[index] for index in waiting]
        self._spawned = [self._spawned[index] for index in waiting]
        self._first = [self._first[index] for index in waiting] if self._first else []
        return found

    def _early(self, now: list[Any], task: Task) -> Iterator[gg305.Drawn]:
        for (number, generator), start, end in zip(self._known, self._states, now, strict=True):
            if start is None or end is None or start.digest == end.digest:
                continue
            if random_states.follows(start, end):
                kind = random_states.name(generator)
                yield gg305.Drawn(*(number, kind, start.digest, end.digest, True, task), early=True)


_MOVING = frozenset(("advance", "jump", "jumped"))
"""Methods that may give each sample its own place in one stream of numbers."""


def _inherited(loading: Any) -> list[tuple[int, Any]]:
    """Generators that a forked worker inherited, numbered by their ids, as in the parent."""
    return [(id(one), one) for one in gg305.used_by(loading)]
