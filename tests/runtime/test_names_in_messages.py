"""How messages name what went to a worker, and the function that runs there."""

from __future__ import annotations

import contextvars
import functools
import math

import pytest

from pytest_gradguard.runtime.kernel.quoting import quoted
from pytest_gradguard.runtime.kernel.tasks import task_of


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("closure['scale']", "`scale`, captured by `work`"),
        ("globals['model'].weight", "`model.weight`, captured by `work`"),
        ("partial.args[0].globals['model']", "`model`, captured by `work`"),
        ("partial.partial.closure['scale']", "`scale`, captured by `work`"),
        (
            "args[2]['function'].closure['table']",
            "`table`, captured by a function that `work` is given",
        ),
        ("args[0].weight", "`.weight` of argument 1 of `work`"),
    ],
)
def test_what_is_captured_is_named_as_the_program_does(path: str, name: str) -> None:
    assert str(quoted(None, path, None, "work")) == name


def work() -> None:
    pass


def test_what_runs_in_a_copy_of_the_context_is_the_task() -> None:
    in_context = functools.partial(contextvars.copy_context().run, work, 1)
    assert task_of(in_context).name == "work"
    assert task_of(functools.partial(work, 1)).name == "work"


def test_a_compiled_function_is_named_as_programs_import_it() -> None:
    torch = pytest.importorskip("torch")
    assert task_of(torch.sum).name == "torch.sum"  # its own: _VariableFunctionsClass.sum
    assert task_of(math.sqrt).name == "math.sqrt"
    assert task_of(len).name == "len"
    assert task_of([].append).name == "list.append"
