"""joblib's backends, and how the batches of each are watched.

One that somebody else has registered is watched through its batches: where it pickles them, they
say so themselves; where it calls them in threads of this process, they are looked at there. One
that does neither cannot be watched, and that is said once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from pytest_gradguard.runtime.integrations.joblib import Backend
from pytest_gradguard.runtime.integrations.pools import methods as pools
from pytest_gradguard.runtime.kernel import probes, registry, running, task_seeds
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import (
    attempt,
    carried,
    hidden_frame,
    warn,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.registry import Workers

_backends: dict[type, Backend | None] = {}


def of(backend: Any) -> Backend | None:
    """How the batches of `backend` travel; None: nowhere, they run in the calling thread."""
    kind = type(backend)
    if kind not in _backends:
        _backends[kind] = _find(kind)
    return _backends[kind]


def _find(kind: type) -> Backend | None:
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in registry.joblib_backends:
            known: Backend | Workers | None = registry.joblib_backends[name]
            return Backend(known) if isinstance(known, Workers) else known
    return Backend(Workers(_registered_name(kind), library="joblib"), _Foreign(kind).batch)


def _registered_name(kind: type) -> str:
    """The name by which programs ask for that class of backends."""
    known = getattr(sys.modules.get("joblib.parallel"), "BACKENDS", {})
    return next((str(name) for name, made in known.items() if made is kind), kind.__name__)


def leave_pool_alone(backend: Any) -> None:
    """Have the pool of `backend`, if it has one, take batches without a look at each."""
    get_pool = getattr(backend, "_get_pool", None)
    if get_pool is None:
        return
    try:
        pool = get_pool()
    except Exception:  # the call asks for it next, and says so
        return
    pools.leave_alone(pool)


class KnownBatch:
    """A batch of joblib's that knows its call; in all else, it is that batch."""

    def __init__(self, batch: Any, call: Call) -> None:
        self._batch = batch
        self._call = call

    def __len__(self) -> int:
        return len(self._batch)

    def __call__(self) -> Any:
        return self._batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class ThreadBatch(KnownBatch):
    """A batch that is looked at in the thread where it runs."""

    def __init__(self, batch: Any, call: Call, asked: Mapping[str, Any]) -> None:
        super().__init__(batch, call)
        self._asked = asked

    def __call__(self) -> Any:
        batch = self._batch
        batch.items = attempt(
            task_seeds.seeded_items, self._asked, batch.items, instead=batch.items
        )
        try:
            return carried(
                batch, running.in_thread, self._call, batch.items, self._asked, running.same
            )
        except BaseException as error:
            without_this_frame(error)
            raise


_FOREIGN = "foreign backend"


class _Foreign:
    """A class of backends that nobody has told the guard of.

    Attributes:
        seen: its batches were pickled, or called here, as far as is known.
    """

    def __init__(self, kind: type) -> None:
        self.threads = Workers(_registered_name(kind), "thread")
        self.seen = False
        self._kind = kind
        self._told = False

    def batch(self, batch: Any, call: Call, backend: Any) -> Any:
        """What stands in for a batch of such a backend."""
        _, *home = call.remembered.setdefault(_FOREIGN, (self, os.getpid(), threading.get_ident()))
        return _ForeignBatch(batch, call, self, *home)

    def ended(self) -> None:
        """Say, once, that nothing is seen of its tasks, if that is so."""
        if not self.seen and not self._told:
            self._told = True
            name = f"{self._kind.__module__}.{self._kind.__qualname__}"
            warn(
                f"gradguard does not watch joblib's backend {self.threads.name!r} ({name}): it "
                "neither pickles the batches that joblib gives it nor calls them in this process"
            )


def ended(call: Call) -> None:
    """A call has ended well, or its generator of results has."""
    foreign, *_ = call.remembered.get(_FOREIGN, (None,))
    if foreign is not None:
        foreign.ended()


class _ForeignBatch(KnownBatch):
    """A batch of which it turns out how it travels."""

    def __init__(
        self, batch: Any, call: Call, foreign: _Foreign, process: int, thread: int
    ) -> None:
        super().__init__(batch, call)
        self._foreign = foreign
        self._process = process
        self._thread = thread

    def __reduce__(self) -> Any:
        self._foreign.seen = True
        return self._batch.__reduce__()

    def __call__(self) -> Any:
        self._foreign.seen = True
        run = self._batch
        if self._process == os.getpid() and self._thread != threading.get_ident():
            self._call.kind = self._foreign.threads
            asked = attempt(probes.ship, self._call, run.items, instead={})
            run = ThreadBatch(run, self._call, asked)
        with hidden_frame:
            return run()
