"""TensorFlow's tapes under the guard: same numbers, nothing kept, nothing left behind."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("tensorflow", "joblib"))), reason="no TensorFlow or joblib"
)


@pytest.fixture(scope="module")
def told() -> Any:
    """What the program says; many cases in one child, as importing TensorFlow is the cost."""
    program = Path(__file__).with_name("tape_program.py")
    done = run_python(program, limit=240, forked="tensorflow")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_program_gets_the_same_from_its_tapes(told: Any) -> None:
    guarded, bare = told["same"]
    assert guarded == bare
    assert None in bare["threading"]  # a result is no source
    assert told["codes"] == ["GG105"]


def test_advice_for_variables_is_tensorflows(told: Any) -> None:
    assert told["advice"]
    assert all("state_dict" not in fix and "get_weights" in fix for fix in told["advice"])


def test_names_are_put_back(told: Any) -> None:
    assert told["put back"]
    assert told["none records"]


def test_mode_error_raises_where_the_gradient_is_asked(told: Any) -> None:
    assert told["raised"] == ["GG105"]


def test_the_finding_is_the_reason_that_a_gradient_is_missing(told: Any) -> None:
    lost, other = told["why"]
    assert lost.startswith("reported: GG105 at ")
    assert "the tape gives None for `weight`" in lost
    assert other.startswith("unknown: it was not watched during the forward pass")


def test_a_loss_tells_what_crossed_and_in_which_lane(told: Any) -> None:
    assert told["lanes"] == ["worker", "worker", "parent"]
    assert told["tensors"] == [["argument", "Variable", [2]], ["result", "EagerTensor", []]]


def test_an_allowed_code_is_dropped(told: Any) -> None:
    assert told["allowed"] == []


def test_a_guard_may_end_inside_a_tape(told: Any) -> None:
    assert told["recording still"]
    assert told["ended inside"] == [[9.0, 9.0], True]


def test_nothing_of_a_tape_is_kept_alive(told: Any) -> None:
    assert told["kept alive"] == 0


def test_workers_that_do_not_need_tensorflow_do_not_import_it(told: Any) -> None:
    assert told["fresh workers"] == [[False, False], []]


def test_what_hangs_on_no_result_of_workers_confirms_nothing(told: Any) -> None:
    assert told["not confirmed"] == [False]
