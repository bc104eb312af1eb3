"""Gradients of two gloo ranks: averaged, added up, gathered, sharded, and forgotten."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("ranks_checks.py")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks the second rank")

WRONG = {
    "own_slice": [],
    "own_slice_in_ddp": [],
    "torchs_gather": ["GG501"],
    "bypassed": ["GG502"],
    "fsdp_detached": [],
    "added_up": [],
    "not_averaged": [],
}
RIGHT = {
    "added_slices": "float64",
    "added_slices_in_ddp": "float32",
    "ddp": "float32",
    "in_double": "float64",
    "fsdp": "float32",
    "added_up_as_a_sum": "float64",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    environment = {"OMP_NUM_THREADS": "1"}
    done = run_python(PROGRAM, folder, limit=240, environment=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_gradient_is_called_wrong_on_each_rank(
    ranks: list[dict[str, Any]], case: str
) -> None:
    for rank, told in enumerate(ranks):
        outcome = told[case]
        assert outcome["message"].startswith(f"on rank {rank}: wrong gradient for ")
        assert outcome["codes"] == ["GG115", *WRONG[case]]
        assert outcome["same"]


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_gradient_is_called_right(ranks: list[dict[str, Any]], case: str) -> None:
    for told in ranks:
        assert f", {RIGHT[case]}, " in told[case].get("right", told[case])
        assert told[case]["same"]


def test_gradients_that_are_added_up_are_twice_the_mean(ranks: list[dict[str, Any]]) -> None:
    assert "Each of them is 2 times that derivative." in ranks[0]["added_up"]["message"]


def test_the_other_rank_hears_of_an_error(ranks: list[dict[str, Any]]) -> None:
    waiting, failing = (told["fails_on_one"]["raised"] for told in ranks)
    assert failing == "RuntimeError: no data"
    assert waiting.endswith("check_gradients failed on rank 1: RuntimeError: no data")


def test_ddp_averages_as_before_afterwards(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["ddp_afterwards"] == ranks[1]["ddp_afterwards"] != 0
