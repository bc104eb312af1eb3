"""What the source of a module says of its plain globals, and how plain values are compared."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gradguard.runtime.kernel.code_names import keys_in
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls.imports import gg109
from pytest_gradguard.runtime.pitfalls.imports.initial_values import UNKNOWN, initial_value
from pytest_gradguard.runtime.pitfalls.imports.plain_values import (
    MISSING,
    at_keys,
    differs,
    digest,
    is_plain,
)

SOURCE = """
import time, argparse
from types import SimpleNamespace
RATE = -0.1
HOURS: int = 60 * 60
SETTINGS = {"rate": 0.1, "start": time.time(), "deep": {"er": [1, 2]}}
BY_CALL = dict(rate=1)
NAMES = SimpleNamespace(rate=2)
ARGS = argparse.Namespace(rate=3, now=time.time())
STARTED = time.time()
HALF = 1 / (0 or 2)
TWICE = 1
TWICE = 2
AGAIN = 1
AGAIN += 1
MAYBE = 1
if STARTED:
    MAYBE = 2
FILLED = {}
FILLED["a"] = time.time()
UPDATED = {}
UPDATED.update(a=1)
HANDED = {}
print(HANDED, end="")
with open(__file__) as FILE:
    pass
class Config:
    depth = 3
    when = time.time()
    def __init__(self, rate=0.5, *, width=4):
        self.rate = rate
        self.width = width
        self.kind = "a"
        self.now = time.time()
        self.both = 1
        self.both = 2
DEFAULT = Config()
GIVEN = Config(rate=0.25)
PLACED = Config(0.25)
TOUCHED = Config()
TOUCHED.rate = 1
"""

EXPECTED: dict[str, Any] = {
    "RATE": -0.1,
    "HOURS": 3600,
    "BY_CALL": {"rate": 1},
    "NAMES.rate": 2,
    "ARGS.rate": 3,
    "Config.depth": 3,
    "DEFAULT.rate": 0.5,
    "DEFAULT.width": 4,
    "DEFAULT.kind": "a",
    "GIVEN.rate": 0.25,
}
NOT_KNOWN = ["ARGS.now", "STARTED", "HALF", "TWICE", "AGAIN", "MAYBE", "FILLED", "UPDATED"]
NOT_KNOWN += ["HANDED", "FILE", "time", "Config", "Config.when", "DEFAULT.now", "DEFAULT.both"]
NOT_KNOWN += ["DEFAULT.none", "PLACED.rate", "TOUCHED.rate", "missing", "DEFAULT.kind.deeper"]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("modules")
    Path(folder, "plain_module.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("plain_module")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["plain_module"]


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_values(module: Any, name: str) -> None:
    assert initial_value(module, tuple(name.split("."))) == EXPECTED[name]


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_is_not_known(module: Any, name: str) -> None:
    assert initial_value(module, tuple(name.split("."))) is UNKNOWN


def test_what_is_known_of_a_dict(module: Any) -> None:
    known = initial_value(module, ("SETTINGS",))
    assert known == {"rate": 0.1, "start": UNKNOWN, "deep": {"er": [1, 2]}}
    assert at_keys(known, ("deep", "er", 1)) == 2
    assert at_keys(known, ("deep", "none")) is MISSING
    assert not is_plain(known)


def test_a_module_without_source_is_not_known() -> None:
    assert initial_value(sys, ("maxsize",)) is UNKNOWN


def test_each_stale_global_is_told_with_its_own_values() -> None:
    evidence = gg109.Evidence(None, "loky")
    reader = Task("predict", None, None)
    for name, here, there in (("SCALE", "5.0", "1.0"), ("RATE", "2.0", "0.5"), ("net", None, None)):
        found = gg109.Global("settings", name, reader)
        for _ in range(2):
            evidence.note(found, gg109.State(0, True, "float", here), there)
    assert evidence.message().startswith(
        "`settings.SCALE`, which `predict` reads in loky workers, is 1.0 there and 5.0 here; "
        "`settings.RATE` is 0.5 there and 2.0 here; `settings.net` has different values there: "
    )
    assert (evidence.details["in_worker"], evidence.details["here"]) == ("1.0", "5.0")


def test_what_has_grown_does_not_differ() -> None:
    for value, before in [
        ({"a": 1, "b": 2}, {"a": 1}),
        ([1, 2], [1]),
        ({1, 2}, {1}),
        ({"a": [1, 2]}, {"a": [1]}),
        (1, True),
    ]:
        assert not differs(value, before)
    for value, before in [({"a": 2}, {"a": 1}), ({}, {"a": 1}), ([2], [1]), ([], [1])]:
        assert differs(value, before)
    for value, before in [((1, 2), (1,)), ("ab", "a"), (None, 1), (0.1, 0.2), (set(), {1})]:
        assert differs(value, before)


def test_plain_values() -> None:
    for plain in [1, "a", None, 1.5, b"", {"a": [1, (2, {3})]}, frozenset({1})]:
        assert is_plain(plain)
    for other in [object(), [object()], {"a": len}, list(range(5_000)), print, Path()]:
        assert not is_plain(other)
    assert digest({"a": 1, "b": {2, 3}}) == digest({"b": {3, 2}, "a": 1})
    assert len({digest(value) for value in ([1, 2], (1, 2), [12], "12", "1", [[1], 2])}) == 6
    endless: list[Any] = []
    endless.append(endless)
    assert not is_plain(endless)


settings: dict[str, Any] = {}
holder: Any = None


def looks_up() -> Any:
    return [settings["a"]["b"] + settings.get("c", 1) for _ in range(2)], holder.table["d"]


def uses_all() -> Any:
    return settings["a"], len(settings), holder.table["d"], holder.table[looks_up]


def test_keys_that_are_looked_up() -> None:
    assert keys_in(looks_up.__code__, ("settings",)) == {("a", "b"), ("c",)}
    assert keys_in(looks_up.__code__, ("holder", "table")) == {("d",)}
    assert keys_in(uses_all.__code__, ("settings",)) is None
    assert keys_in(uses_all.__code__, ("holder", "table")) is None
