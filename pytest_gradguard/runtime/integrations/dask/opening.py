"""What a client of `distributed` needs before tasks of a call go to its workers."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from pytest_gradguard.runtime.integrations.dask import PACKAGES, marks, worker
from pytest_gradguard.runtime.kernel import frameworks, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.state import dropped_at_end

PASSED = frozenset({*PACKAGES, "joblib", "operator"})
"""The packages through which the program reaches dask."""
kept: deque[Call] = dropped_at_end(deque(maxlen=4_096))
"""The last calls that shipped what requires grad: results may be asked for at any time."""
_listening: weakref.WeakSet[Any] = dropped_at_end(weakref.WeakSet())


def opened(client: Any, call: Call) -> None:
    """Make ready for the tasks of `call`, which go to the workers of `client`."""
    if in_this_process(client):
        # Threads of this process: what they get is a copy all the same, but for no process.
        call.dropped = call.dropped | {"GG101", "GG107", "GG202"}
    frameworks.watch_reductions()
    if frameworks.loaded():
        for one in marks.deserializers:
            one.apply()
    if client not in _listening:
        _listening.add(client)
        client.subscribe_topic(worker.topic(marks.here()), _heard)


def _heard(event: Any) -> None:
    attempt(lambda: worker.hear(event[1]))


def in_this_process(client: Any) -> bool:
    """Whether the workers of `client` are threads of this process."""
    return str(getattr(client.scheduler, "address", "")).startswith("inproc")


def takes_notes(client: Any) -> bool:
    """Whether workers can send notes beside a result: `client` has no serializers of its own."""
    return client._serializers is None and client._deserializers is None


def undo() -> None:
    """Leave `distributed` as it was."""
    for one in marks.deserializers:
        one.undo()


watching.at_end(undo)
