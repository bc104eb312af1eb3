"""`dask.multiprocessing`: `compute(scheduler="processes")`, and what bags use by default.

dask pickles each node of a graph by a function of its own, and hands the bytes to a pool. While
that function pickles a node, a transfer is active, and the node goes as a `nodes.WorkerNode`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import PROCESSES, nodes
from pytest_gradguard.runtime.kernel import collector, probes, transfer
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import Beside, attempt, fault, hidden_frame, theirs_only
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.shipment import Shipment

_DASK = frozenset({"dask"})


def patches(module: ModuleType) -> list[Patch]:
    """Watch what `dask.multiprocessing` runs."""
    nodes.task_spec()
    return [Patch(module, "get_async", _watched)]


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_async(*args: Any, **kwargs: Any) -> Any:
        dumps = kwargs.get("dumps")
        call = None if dumps is None else attempt(calling.begin, PROCESSES, passing=_DASK)
        if sys.modules.setdefault(nodes.__name__, nodes) is not nodes:
            call = None  # somebody has imported the guard twice: ours cannot be pickled
        if call is not None:
            kwargs["dumps"] = attempt(_Dumps, dumps, call, instead=dumps)
        with hidden_frame:
            result = original(*args, **kwargs)
        if call is not None:
            with theirs_only:
                attempt(collector.announce, call.collector, call.evidence.values())
        return result

    return get_async


class _Dumps:
    """dask's function that pickles a node and its data; in a worker it is that function itself."""

    def __init__(self, original: Any, call: Call) -> None:
        self._original = original
        self._call = call

    def __call__(self, value: Any) -> Any:
        try:
            node, data = value
            items = list(nodes.items_of(node, data))
            if items:
                asked = probes.ship(self._call, items)
                watched = nodes.WorkerNode(self._call.token, asked, node)
                shipment = Shipment(self._call, items)
        except Exception as error:
            fault(error)
            items = []
        if not items:
            return self._original(value)
        with Beside(transfer.during, shipment):
            return self._original((watched, data))

    def __reduce__(self) -> tuple[Any, ...]:
        return nodes.same, (self._original,)
