"""One parallel call: where it was made, on which backend, and what was shipped to it."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

from pytest_gradguard.runtime.callsite import Site, user_site
from pytest_gradguard.runtime.collector import Collector, allowed_now
from pytest_gradguard.runtime.evidence import Evidence

_tokens = itertools.count(1)
_by_token: weakref.WeakValueDictionary[int, Call] = weakref.WeakValueDictionary()

_SEARCHES = 8
"""How many batches of one call are searched for the paths of their objects; all are counted."""


class Shipped(NamedTuple):
    """A tensor of this process that requires grad and was pickled for a worker."""

    tensor: weakref.ref[Any]
    path: str


class Call:
    """One call of a `Parallel` object, from its first task to the last mention of its results."""

    def __init__(self, collector: Collector) -> None:
        self.token = next(_tokens)
        self.site: Site | None = user_site()
        self.collector = collector
        self.dropped = collector.ignore | allowed_now()
        self.backend = ""
        self.ships_gradients = False
        self.shipped: dict[int, Shipped] = {}
        self.evidence: dict[int, Evidence] = {}
        self._searches = _SEARCHES
        _by_token[self.token] = self

    def remember_shipped(self, tensor: Any, path: str) -> None:
        """Remember, weakly, that `tensor` requires grad and goes to a worker of this call."""
        if id(tensor) not in self.shipped:
            self.shipped[id(tensor)] = Shipped(weakref.ref(tensor), path)

    def may_search(self) -> bool:
        """Whether the slow road may be taken once more for this call."""
        self._searches -= 1
        return self._searches >= 0

    def note(self, evidence: Evidence) -> None:
        """Remember that `evidence` comes of this call."""
        self.evidence[id(evidence)] = evidence


def by_token(token: int) -> Call | None:
    """The call with that token in this process, while anything refers to it."""
    return _by_token.get(token)
