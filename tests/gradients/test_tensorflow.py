"""TensorFlow: what the tapes return decides, and each `None` gets its reason.

The programs run in one child, because TensorFlow's threads and a fork of the test process by
another test do not go together.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

HERE = Path(__file__).parent
PROGRAMS = [HERE / "tensorflow_programs.py", HERE / "tensorflow_outcomes.py"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    run = run_python(HERE / "tensorflow_run.py", limit=300, forked="tensorflow")
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def _expected() -> list[tuple[str, str]]:
    """Name and reason of every program, read without TensorFlow."""
    return [
        (node.name, node.decorator_list[0].args[0].value)  # type: ignore[attr-defined]
        for path in PROGRAMS
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]


@pytest.mark.parametrize("name", [name for name, _ in _expected()])
def test_the_reason_is_right(name: str, outcomes: dict[str, Any]) -> None:
    expected, found = outcomes[name]
    assert found == expected


def test_every_name_is_put_back(outcomes: dict[str, Any]) -> None:
    assert outcomes["put back"] == [True, True]


def test_every_program_ran(outcomes: dict[str, Any]) -> None:
    names = [name for name, _ in _expected()]
    assert sorted(names) == sorted(set(outcomes) - {"put back"})
