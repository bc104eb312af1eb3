"""`dask.multiprocessing`: `compute(scheduler="processes")`, and what bags use by default.

dask pickles each node of a graph by a function of its own, and hands the bytes to a pool. While
that function pickles a node, a transfer is active, and the node goes as a `nodes.WorkerNode`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import PROCESSES, nodes
from pytest_gradguard.runtime.kernel import probes, transfer
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import Beside, fault
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.shipment import Shipment

_DASK = frozenset({"dask"})


def patches(module: ModuleType) -> list[Patch]:
    """Watch what `dask.multiprocessing` runs."""
    nodes.task_spec()
    return [observe(module, "get_async", before=_begin, arguments=_arguments, after=Call.announce)]


def _begin(*args: Any, dumps: Any = None, **kwargs: Any) -> Call | None:
    if sys.modules.setdefault(nodes.__name__, nodes) is not nodes:
        return None  # somebody has imported the guard twice: ours cannot be pickled
    return None if dumps is None else calling.begin(PROCESSES, passing=_DASK)


def _arguments(call: Call, /, *args: Any, dumps: Any, **kwargs: Any) -> Arguments:
    return args, {**kwargs, "dumps": _Dumps(dumps, call)}


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
