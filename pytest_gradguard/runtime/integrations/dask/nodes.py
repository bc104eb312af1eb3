"""The nodes of dask's graphs; workers import this module, so it stays light."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_gradguard.runtime.kernel import task_seeds
from pytest_gradguard.runtime.kernel.dispatch.remote import run
from pytest_gradguard.runtime.kernel.faults import attempt, carried, hidden_frame
from pytest_gradguard.runtime.kernel.registry import UnknownLayout


def task_spec() -> Any:
    """dask's module of the nodes of graphs.

    Raises:
        UnknownLayout: this dask has none: it is too old.
    """
    module = sys.modules.get("dask._task_spec")
    if module is None:
        raise UnknownLayout("its graphs hold no nodes")
    return module


def items_of(task: Any, data: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The user's functions in a node of a graph, with their arguments."""
    function = getattr(task, "func", None)
    if function is None:
        return
    args = tuple(data.get(getattr(one, "key", None), one) for one in task.args)
    if getattr(function, "__module__", "") == "dask._task_spec":  # nodes in a node, or a container
        for one in args:
            for node in one.values() if isinstance(one, dict) else (one,):
                yield from items_of(node, data)
    elif callable(function):
        kwargs = dict(task.kwargs)
        if _is_dasks(function):
            users = kwargs.get(
                "_func"
            )  # of a data frame's partitions: apply_and_enforce(…, _func=)
            if _is_users(users):
                function = kwargs.pop("_func")
            else:  # of the chunks of a bag: map_chunk(users, …)
                users = next(filter(_is_users, args), None)
                if users is not None:
                    function, args = users, tuple(one for one in args if one is not users)
                else:
                    inside = [item for one in args for item in items_of(one, data)]
                    calls = any(
                        callable(it) and not _is_dasks(it) for it in (*args, *kwargs.values())
                    )
                    if inside or not calls:
                        # Around such a task, reify(map_chunk(…)), or over results: no user's own.
                        yield from inside
                        return
        yield function, args, kwargs


def _is_users(item: Any) -> bool:
    return callable(item) and not isinstance(item, type) and not _is_dasks(item)


def _is_dasks(function: Any) -> bool:
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == "dask"


class WorkerNode:
    """A node of one of dask's graphs in a worker process, called with what it depends on."""

    __slots__ = ("_asked", "_node", "_token")

    def __init__(self, token: int, asked: Mapping[str, Any], node: Any) -> None:
        self._token = token
        self._asked = asked
        self._node = node

    def __call__(self, data: Any) -> Any:
        node = attempt(task_seeds.seeded, self._asked, self._node, instead=self._node)
        task = functools.partial(node, data)
        items = attempt(_all_items, self._node, data, instead=[])
        with hidden_frame:
            return carried(task, run, items, False, self._token, self._asked)


def _all_items(task: Any, data: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
    return list(items_of(task, data))


def same(value: Any) -> Any:
    """`value`; what stands for it here is it there."""
    return value
