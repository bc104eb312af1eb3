"""What `travelling.light` calls light travels with nothing that the guard would look at."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch

from pytest_gradguard.runtime.kernel import travelling

HERE = sys.modules[__name__]


def by_name(index: int) -> int:
    return index


SOURCE = """
import os, functools
import torch
from tests_travelling_helpers import helper

weight = torch.ones(2, requires_grad=True)
later = None
rate = 0.1

class Net(torch.nn.Module): pass

def alone(index): return index
def calls_another(index): return alone(index) + helper(index)
def uses_modules(index): return os.getpid() + len(str(torch)) + index
def uses_a_class(index): return functools.partial(max, index)
def annotated(index: int, name: "str" = "a", *, scale: float = 2.0) -> int: return index
def recurses(index): return recurses(index - 1) if index else 0

def reads_a_tensor(index): return weight * index
def reads_what_comes_later(index): return later
def reads_a_number(index): return rate * index
def reads_through_another(index): return reads_a_tensor(index)
def has_a_default(index, tensor=weight): return tensor
def has_a_keyword(index, *, tensor=weight): return tensor
def names_its_own_class(index): return Net()
def annotated_by_its_own(index: Net) -> None: return None
def sets_a_global(index):
    global later
    later = index
def inner_reads(index): return (lambda: weight)()
def made(tensor):
    def inner(index): return tensor
    return inner
closes_over = made(weight)
def has_attributes(index): return index
has_attributes.tensor = weight
@functools.wraps(has_attributes)
def wraps_another(index): return index
"""
CODE = compile(SOURCE, "main", "exec", dont_inherit=True)
LIGHT = ["alone", "calls_another", "uses_modules", "uses_a_class", "annotated", "recurses"]


@pytest.fixture(scope="module")
def main() -> Iterator[dict[str, Any]]:
    """A program's main module, whose functions are pickled by value."""
    helpers = types.ModuleType("tests_travelling_helpers")
    exec("def helper(index): return index", vars(helpers))
    sys.modules[helpers.__name__] = helpers
    names = {"__name__": "__main__"}
    exec(CODE, names)
    yield names
    del sys.modules[helpers.__name__]


def _functions() -> list[str]:
    names = [one.co_name for one in CODE.co_consts if isinstance(one, types.CodeType)]
    return [name for name in names if name not in ("Net", "made", "__annotate__")] + ["closes_over"]


@pytest.mark.parametrize("name", _functions())
def test_what_captures_nothing_that_could_matter_is_light(main: dict[str, Any], name: str) -> None:
    assert travelling.light(main[name]) is (name in LIGHT)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are computed as it is defined")
def test_annotations_are_not_computed() -> None:
    asked: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__", "asked": asked, "int": int}
    source = "def a(x: asked.append(1)): pass\ndef b(x: Missing): pass\ndef c(x: int): pass"
    exec(compile(source, "main", "exec", dont_inherit=True), names)
    assert [travelling.light(names[name]) for name in "abc"] == [False, True, True]
    assert asked == []


@pytest.mark.parametrize("name", LIGHT)
def test_what_is_light_meets_no_tensor_on_its_way(
    main: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = []
    reduce = torch.Tensor.__reduce_ex__

    def noted(self: torch.Tensor, protocol: Any) -> Any:
        met.append(self)
        return reduce(self, protocol)

    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", noted)
    cloudpickle.dumps(main[name])
    assert not met
    cloudpickle.dumps(main["reads_a_tensor"])
    assert met


@pytest.mark.parametrize(
    ("item", "light"),
    [
        (by_name, True),
        (len, False),
        (functools.partial(by_name, 1), False),
        (os.path.join, True),
        (torch.nn.Linear(1, 1).forward, False),
    ],
)
def test_only_plain_functions_are_light(item: Callable[..., Any], light: bool) -> None:
    assert travelling.light(item) is light


def test_a_module_registered_to_be_pickled_by_value_is_not_pickled_by_name() -> None:
    assert travelling.by_name(by_name)
    cloudpickle.register_pickle_by_value(HERE)
    try:
        assert not travelling.by_name(by_name)
        assert travelling.by_name(os.path.join)
    finally:
        cloudpickle.unregister_pickle_by_value(HERE)
    assert travelling.by_name(by_name)
