"""The work of `distributed`'s clients in the calling thread, as it is submitted.

Futures are dask's own, so that waiting and releasing work as they do elsewhere: the workers hold
None for each result, and whoever gathers it gets it from here.
"""

from __future__ import annotations

import functools
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from pytest_gradguard.runtime.integrations.dask import WORKERS, nodes
from pytest_gradguard.runtime.integrations.dask.client import graph_transfer, prepare
from pytest_gradguard.runtime.kernel import inline, task_seeds, transfer
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch

Original = Callable[..., Any]


class _Outcome(NamedTuple):
    """What came of a node of a graph: a value, or an error."""

    value: Any = None
    error: Exception | None = None


Outcomes = Mapping[Any, _Outcome]
_SEVERAL = (dict, list, tuple, set, frozenset)
"""What `scatter` sends item by item."""

_held: weakref.WeakKeyDictionary[Any, Outcomes] = weakref.WeakKeyDictionary()
"""By client: what its futures stand for, by their keys."""


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `distributed.client`."""
    return [
        Patch(module.Client, "_graph_to_futures", _inline_graph),
        Patch(module.Client, "_gather_remote", _inline_gather),
        Patch(module.Client, "_scatter", _inline_scatter),
        observe(module.Client, "run", before=lambda *_, **__: inline.refuse("`Client.run`")),
    ]


def _inline_graph(original: Original) -> Original:
    @functools.wraps(original)
    def _graph_to_futures(self: Any, expr: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("actors"):
            inline.state.give_up("is an actor of dask.distributed")
        graph = nodes.task_spec().convert_legacy_graph(_copied(self, expr).__dask_graph__())
        known = {key: one for key, one in _held.get(self, {}).items() if key in self.futures}
        found = {**known, **_run(graph, keys, known)}
        _held[self] = {**known, **{key: found[key] for key in keys}}
        stored = _expression({key: _stored(key, found[key]) for key in keys})
        with task_seeds.unnumbered():
            return original(self, stored, keys, *args, **kwargs)

    return _graph_to_futures


def _inline_gather(original: Original) -> Original:
    @functools.wraps(original)
    async def _gather_remote(self: Any, *args: Any, **kwargs: Any) -> Any:
        response = await original(self, *args, **kwargs)
        held = _held.get(self, {})
        for key in response.get("data", {}).keys() & held.keys():
            response["data"][key] = _value(key, held)
        return response

    return _gather_remote


def _expression(graph: Mapping[Any, Any]) -> Any:
    return sys.modules["dask._expr"].LLGExpr(graph, _determ_token=uuid.uuid4().hex)


def _copied(client: Any, expr: Any) -> Any:
    """A copy of what is submitted, as a worker would get it, whose tasks are numbered."""
    numbering = graph_transfer(client, expr)
    if numbering is None or numbering.call is None:
        return inline.state.isolation.pickled(expr)
    restore = prepare(client, expr, numbering.call)
    try:
        with transfer.during(numbering):
            return inline.state.isolation.pickled(expr)
    finally:
        restore()


def _run(graph: Mapping[Any, Any], keys: Iterable[Any], known: Outcomes) -> Outcomes:
    """What comes of the nodes of a graph that `keys` need."""
    needed = nodes.task_spec().cull(graph, keys)
    order = sys.modules["dask.order"].order(dict(needed))
    found: dict[Any, _Outcome] = {}
    for key in sorted(needed, key=order.__getitem__):
        found[key] = _outcome(needed[key], {**known, **found})
    return found


def _outcome(node: Any, found: Outcomes) -> _Outcome:
    try:
        values = {key: _value(key, found) for key in node.dependencies}
        if isinstance(node, nodes.task_spec().Task):
            function = getattr(node.func, "_gradguard", [node.func])[-1]
            run = functools.update_wrapper(functools.partial(node), function)
            result = inline.run(WORKERS, None, run, (values,), {})
        else:
            result = node(values)
        return _Outcome(inline.state.isolation.pickled(result))
    except Exception as error:
        return _Outcome(error=error)


def _value(key: Any, found: Outcomes) -> Any:
    if key not in found:
        inline.state.give_up("needs a result that another client has")
    outcome = found[key]
    if outcome.error is not None:
        raise outcome.error
    return inline.state.isolation.pickled(outcome.value)


def _stored(key: Any, outcome: _Outcome) -> Any:
    """The node of a graph that lets a future end as its task did."""
    spec = nodes.task_spec()
    if outcome.error is not None:
        return spec.Task(key, _fail, outcome.error)
    return spec.DataNode(key, None)


def _fail(error: Exception) -> None:
    raise error


def _inline_scatter(original: Original) -> Original:
    @functools.wraps(original)
    async def _scatter(self: Any, data: Any, *args: Any, hash: bool = True, **kwargs: Any) -> Any:
        if isinstance(data, (range, Iterator)):
            data = list(data)
        several = type(data) in _SEVERAL or hasattr(data, "_fields")
        values = list(data) if several else [data]
        tokenize: Any = sys.modules["dask.base"].tokenize
        names = [f"{type(x).__name__}-{tokenize(x) if hash else uuid.uuid4().hex}" for x in values]
        if type(data) is dict:
            names, values = list(data), list(data.values())
        graph = {
            name: nodes.task_spec().DataNode(name, value)
            for name, value in zip(names, values, strict=True)
        }
        with task_seeds.unnumbered():
            futures = self._graph_to_futures(_expression(graph), names, {"collections": []})
        if type(data) is dict:
            return futures
        found = [futures[name] for name in names]
        if not several:
            return found[0]
        return data._make(found) if hasattr(data, "_fields") else type(data)(found)

    return _scatter
