"""`Client.scatter`: what it sends, and which tasks are given it later.

It is sent in the client's own thread, by reductions of dask's own: so it is looked at as it is
handed over.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gradguard.runtime.integrations.dask import WORKERS
from pytest_gradguard.runtime.integrations.dask.opening import PASSED, in_this_process
from pytest_gradguard.runtime.integrations.dask.worker import Given
from pytest_gradguard.runtime.kernel import collector, locate, task_seeds
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.shipment import Shipment
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import roots_of

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.evidence import Object
    from pytest_gradguard.runtime.kernel.framework import Framework


class _Sending(NamedTuple):
    """One call of `scatter`.

    Attributes:
        call: the call.
        numbers: by the keys by which tasks are given what it sent: the numbers of modules in the
            call, and None for anything else.
    """

    call: Call
    numbers: dict[Any, int | None]


_sent: deque[_Sending] = dropped_at_end(deque(maxlen=64))
"""The last that sent something that requires grad, or modules."""


class _Sent(Shipment):
    """What one call of `scatter` sends."""

    def _sample(self, item: Any, history: Any, framework: Framework) -> Object:
        sample = super()._sample(item, history, framework)
        return sample._replace(parameter="data")  # the client is not among the arguments


def sending(client: Any, data: Any, *args: Any, **kwargs: Any) -> Call | None:
    """The call that sends `data`, if there is something to know of in it."""
    if collector.innermost() is None or in_this_process(client):
        return None
    items: list[tuple[Any, Any, Any]] = [(type(client).scatter, (data,), {})]
    wanted = _wanted_in(items)
    with task_seeds.unnumbered():
        call = calling.begin(WORKERS, PASSED) if wanted else None
    if call is not None:
        _note(_Sent(call, items), wanted)
    return call


def ship(call: Call, item: tuple[Any, Any, Any]) -> Given:
    """Take what the task `item` of `call` is given for shipped; returns which of it are modules."""
    _note(Shipment(call, [item]), _wanted_in([item]))
    modules = {place: one for place, one in _arguments(item) if _is_module(one)}
    own = {place: (call.token, call.number_of(one)) for place, one in modules.items()}
    return {**own, **use(call, [item])}


def _arguments(item: tuple[Any, Any, Any]) -> Iterator[tuple[int | str, Any]]:
    _, args, kwargs = item
    yield from enumerate(args)
    yield from kwargs.items()


def _is_module(item: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.nn.Module)


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


def sent(call: Call, futures: Any, client: Any, data: Any, *args: Any, **kwargs: Any) -> None:
    """Know what a call has sent by the keys of `futures`, and announce what was found in it."""
    if isinstance(futures, dict):
        pairs = [(data[name], future) for name, future in futures.items()]
    elif isinstance(futures, (list, tuple)) and isinstance(data, (list, tuple)):
        pairs = list(zip(data, futures, strict=True))
    else:
        several = isinstance(futures, (list, tuple, set, frozenset))
        pairs = [(None if several else data, one) for one in (futures if several else [futures])]
    numbers = {
        future.key: call.number_of(one) if _is_module(one) else None for one, future in pairs
    }
    if call.shipped and numbers:
        _sent.append(_Sending(call, numbers))
    call.announce()


def use(call: Call, items: Iterable[tuple[Any, Any, Any]]) -> Given:
    """Take what was sent before for shipped to a call that is given it.

    Args:
        call: the call.
        items: its tasks, whose arguments may refer to what was sent.

    Returns:
        The arguments that are such modules, the same ones in all tasks.
    """
    if not _sent:
        return {}
    modules: list[dict[int | str, tuple[int, int]]] = []
    for item in items:
        modules.append({})
        for place, one in _arguments(item):
            key = getattr(one, "key", None)
            for before, numbers in _sent:
                if isinstance(key, str) and key in numbers:
                    call.use(before)
                    if (number := numbers[key]) is not None:
                        modules[-1][place] = (before.token, number)
    first = modules[0] if modules else {}
    return {
        place: sent
        for place, sent in first.items()
        if all(other.get(place) == sent for other in modules)
    }
