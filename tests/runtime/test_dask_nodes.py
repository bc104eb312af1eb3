"""The user's own functions behind those that dask puts around them in its graphs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("dask")
from dask._task_spec import List, Task, TaskRef

from pytest_gradguard.runtime.integrations.dask.nodes import items_of


def part(*args: Any, **kwargs: Any) -> None:
    """A function of the user's."""


def key(*args: Any) -> None:
    """Another one, which is an argument."""


def apply_and_enforce(*args: Any, _func: Any, _meta: Any, **kwargs: Any) -> None:
    """Stands for what `map_partitions` of dask's data frames runs (dask 2026.8)."""


def map_chunk(function: Any, iterators: Any) -> None:
    """Stands for what `map` of dask's bags runs."""


def reify(chunk: Any) -> None:
    """Stands for what makes a list of a chunk, or something of the lists."""


class Element:
    """A class of the user's."""


for function in (apply_and_enforce, map_chunk, reify):
    function.__module__ = "dask.here"


def test_a_partition_of_a_data_frame() -> None:
    node = Task("k", apply_and_enforce, TaskRef("frame"), 2, by=key, _func=part, _meta=None)
    assert list(items_of(node, {"frame": 1})) == [(part, (1, 2), {"by": key, "_meta": None})]


def test_a_chunk_of_a_bag() -> None:
    assert list(items_of(Task("k", map_chunk, part, 1), {})) == [(part, (1,), {})]


def test_a_chunk_of_a_bag_in_what_makes_a_list_of_it() -> None:
    node = Task("k", reify, Task(None, map_chunk, part, TaskRef("chunk")))
    assert list(items_of(node, {"chunk": 1})) == [(part, (1,), {})]


def test_a_class_that_makes_the_elements_of_a_bag() -> None:
    node = Task("k", reify, Task(None, map_chunk, Element, 1))
    assert list(items_of(node, {})) == [(map_chunk, (Element, 1), {})]


def test_what_only_dask_has_to_do_with_is_nobodys() -> None:
    assert not list(items_of(Task("k", reify, [1, 2]), {}))
    assert not list(items_of(Task("k", reify, List(TaskRef("a"))), {"a": 1}))
