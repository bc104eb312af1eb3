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


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a_nan_in_the_batch", "tf.debugging.enable_check_numerics()"),
        ("stop_gradient", "Leave out `tf.stop_gradient()`"),
        ("numpy", "Leave out `.numpy()`"),
        ("the_index_of_the_largest", "a softmax"),
        ("cast_to_integers", "a softmax"),
        ("a_comparison", "a softmax"),
        ("sampled", "`log_prob`"),
        ("assigned_to_another_variable", "the tensor itself"),
        ("the_start_of_a_new_variable", "the tensor itself"),
        ("predicted_under_the_tape", "Call the model itself"),
        ("a_penalty_on_a_slope_taken_outside", "inside the `with` block of the outer one"),
        ("in_processes_of_joblib", "inside the worker function"),
        ("a_clone_is_trained", "with the watched model"),
    ],
)
def test_the_advice_can_be_followed(name: str, advice: str, outcomes: dict[str, Any]) -> None:
    assert all(advice in fix for fix in outcomes["fixes"][name])


def test_what_could_not_be_checked_is_said(outcomes: dict[str, Any]) -> None:
    assert list(outcomes["warned"]) == ["a_zero_in_a_traced_function"]
    (told,) = outcomes["warned"]["a_zero_in_a_traced_function"]
    assert "`nonzero=True` could not be checked for `v`" in told


def test_every_name_is_put_back(outcomes: dict[str, Any]) -> None:
    assert outcomes["put back"] == [True, True]


def test_every_program_ran(outcomes: dict[str, Any]) -> None:
    names = [name for name, _ in _expected()]
    assert sorted(names) == sorted(set(outcomes) - {"put back", "fixes", "warned"})
