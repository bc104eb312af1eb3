"""`Client.scatter`: what it sends, and which tasks are given it later.

It is sent in the client's own thread, by reductions of dask's own: so it is looked at as it is
handed over.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.integrations.dask import WORKERS
from pytest_gradguard.runtime.integrations.dask.opening import in_this_process
from pytest_gradguard.runtime.kernel import collector, locate, task_seeds, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import attempt, theirs_only, without_this_frame
from pytest_gradguard.runtime.kernel.shipment import Shipment
from pytest_gradguard.runtime.kernel.tasks import roots_of

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.evidence import Object
    from pytest_gradguard.runtime.kernel.framework import Framework

_sent: deque[tuple[frozenset[str], Call]] = deque(maxlen=64)
"""The last that sent something that requires grad, and the keys by which tasks are given it."""
watching.at_end(_sent.clear)


def watched(passing: frozenset[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps `Client.scatter`.

    Args:
        passing: the packages through which the program reaches dask.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scatter(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            call = attempt(_sending, self, data, passing)
            try:
                futures = original(self, data, *args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            if call is not None:
                attempt(_keep, call, futures)
                with theirs_only:
                    attempt(collector.announce, call.collector, call.evidence.values())
            return futures

        return scatter

    return wrap


class _Sent(Shipment):
    """What one call of `scatter` sends."""

    def _sample(self, item: Any, history: Any, framework: Framework) -> Object:
        sample = super()._sample(item, history, framework)
        return sample._replace(parameter="data")  # the client is not among the arguments


def _sending(client: Any, data: Any, passing: frozenset[str]) -> Call | None:
    """The call that sends `data`, if there is something to know of in it."""
    if collector.innermost() is None or in_this_process(client):
        return None
    items: list[tuple[Any, Any, Any]] = [(type(client).scatter, (data,), {})]
    wanted = _wanted_in(items)
    with task_seeds.unnumbered():
        call = calling.begin(WORKERS, passing) if wanted else None
    if call is not None:
        _note(_Sent(call, items), wanted)
    return call


def ship(call: Call, items: list[tuple[Any, Any, Any]]) -> None:
    """Take what the tasks `items` of `call` are given for shipped."""
    _note(Shipment(call, items), _wanted_in(items))


def _wanted_in(items: Any) -> list[Any]:
    """The tensors that require grad among what the tasks `items` are given."""
    if "torch.nn.parameter" not in sys.modules:
        return []
    from pytest_gradguard.runtime.frameworks.torch import tensors

    met: list[Any] = []

    def look(item: Any) -> bool:
        if tensors.is_tensor(item):
            met.append(item)
            return True
        return False

    locate.find([root for root in roots_of(items) if not root[0].endswith("|")], look)
    return [tensor for tensor in met if tensors.requires_grad(tensor)]


def _note(shipment: Shipment, tensors: list[Any]) -> None:
    if not tensors:
        return
    from pytest_gradguard.runtime.frameworks.torch import FRAMEWORK

    parameter = sys.modules["torch.nn.parameter"].Parameter
    for tensor in tensors:
        if isinstance(tensor, parameter):
            shipment.parameters.append((tensor, FRAMEWORK))
        else:
            shipment.tensor(tensor, None, FRAMEWORK)
    shipment.ended()


def _keep(call: Call, futures: Any) -> None:
    held = list(futures.values()) if isinstance(futures, dict) else futures
    every = held if isinstance(held, (list, tuple, set, frozenset)) else [held]
    keys = frozenset(key for one in every if isinstance(key := getattr(one, "key", None), str))
    if call.shipped and keys:
        _sent.append((keys, call))


def use(call: Call, items: Iterable[Any]) -> None:
    """Take what was sent before for shipped to a call that is given it.

    Args:
        call: the call.
        items: its tasks, whose arguments may refer to what was sent.
    """
    if not _sent:
        return
    given = {
        getattr(one, "key", None) for _, args, kwargs in items for one in (*args, *kwargs.values())
    }
    for keys, before in _sent:
        if not keys.isdisjoint(given):
            call.use(before)
