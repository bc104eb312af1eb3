"""Gradients of TensorFlow's variables and Keras's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import run_python

for needed in ("tensorflow", "keras", "joblib"):
    pytest.importorskip(needed)

PROGRAM = Path(__file__).with_name("tensorflow_checks.py")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = run_python(PROGRAM, limit=300, environment=quiet, forked="tensorflow")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_right_gradients_are_called_right(outcomes: dict[str, Any]) -> None:
    precision = {name: one.get("right", "") for name, one in outcomes.items()}
    for name in ("keras_model", "own_tape", "traced"):
        assert ", float32, " in precision[name]
    assert ", float64, " in precision["in_double"]


@pytest.mark.parametrize("case", ["own_tape_halved", "in_threads", "stopped"])
def test_wrong_gradients_are_called_wrong(outcomes: dict[str, Any], case: str) -> None:
    assert outcomes[case]["wrong"]
    assert outcomes[case]["codes"][0] == "GG115"


def test_a_tape_around_threads_explains_it(outcomes: dict[str, Any]) -> None:
    assert outcomes["in_threads"]["wrong"] == ["kernel"]
    assert "there is no gradient" in outcomes["in_threads"]["message"]
    assert "GG105" in outcomes["in_threads"]["codes"]


def test_one_factor_is_told(outcomes: dict[str, Any]) -> None:
    assert "times that derivative" in outcomes["own_tape_halved"]["message"]


def test_what_cannot_be_checked_is_refused(outcomes: dict[str, Any]) -> None:
    assert "shape (2,); reduce it" in outcomes["vector"]["raised"]
    assert "is a constant; check variables" in outcomes["constant"]["raised"]
    assert "the closure changes 'variable'" in outcomes["stepping"]["raised"]


def test_variables_and_generators_are_as_they_were(outcomes: dict[str, Any]) -> None:
    assert all(one["same"] for one in outcomes.values())
    assert len({one["drawn"] for one in outcomes.values()}) == 1
