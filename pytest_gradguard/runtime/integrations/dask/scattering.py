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
    if collector.innermost() is None or "torch.nn.parameter" not in sys.modules:
        return None
    if str(getattr(client.scheduler, "address", "")).startswith("inproc"):
        return None
    from pytest_gradguard.runtime.frameworks.torch import FRAMEWORK, tensors

    items: list[tuple[Any, Any, Any]] = [(type(client).scatter, (data,), {})]
    met: list[Any] = []

    def look(item: Any) -> bool:
        if tensors.is_tensor(item):
            met.append(item)
            return True
        return False

    locate.find(roots_of(items), look)
    wanted = [tensor for tensor in met if tensors.requires_grad(tensor)]
    with task_seeds.unnumbered():
        call = calling.begin(WORKERS, passing) if wanted else None
    if call is None:
        return None
    shipment = _Sent(call, items)
    parameter = sys.modules["torch.nn.parameter"].Parameter
    for tensor in wanted:
        if isinstance(tensor, parameter):
            shipment.parameters.append((tensor, FRAMEWORK))
        else:
            shipment.tensor(tensor, None, FRAMEWORK)
    shipment.ended()
    return call


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
            call.shipped.update({number: (one, "") for number, (one, _) in before.shipped.items()})
            call.ships_gradients = call.ships_gradients or before.ships_gradients
