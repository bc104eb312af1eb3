"""DDP on two gloo ranks: each says what it lacks, and computes what it computes unguarded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("ddp_ranks.py")
ERROR = "Expected to have finished reduction in the prior iteration"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks the second rank")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    folder = tmp_path_factory.mktemp("ranks")
    done = run_python(PROGRAM, folder, limit=240, forked="torch")
    assert done.returncode == 0, done.stderr
    lines = [
        line for rank in (0, 1) for line in json.loads((folder / f"rank{rank}.json").read_text())
    ]
    return {(line["case"], line["rank"]): line for line in lines}


@pytest.mark.parametrize("rank", [0, 1])
def test_parameters_are_the_same_under_the_guard(
    outcomes: dict[tuple[str, int], Any], rank: int
) -> None:
    assert outcomes["used", rank] == {**outcomes["bare", rank], "case": "used"}
    assert outcomes["used", 0]["result"] == outcomes["used", 1]["result"]


@pytest.mark.parametrize(("rank", "reason"), [(0, "cut"), (1, "not-in-graph")])
def test_each_rank_has_its_own_reason(
    outcomes: dict[tuple[str, int], Any], rank: int, reason: str
) -> None:
    outcome = outcomes["different_reasons", rank]
    error, *notes = outcome["raised"]
    assert error.startswith(ERROR)
    ((code, message, details),) = outcome["found"]
    assert code == "GG504"
    assert notes == ([f"GG504: {message}"] if sys.version_info >= (3, 11) else [])
    assert f"on rank {rank}, " in message
    assert "`extra.weight` and `extra.bias` (2 of 4 parameters)" in message
    assert details["reason"] == reason
    assert "or freeze them before you wrap the model" in details["fix"]
    assert "allow_none" not in details["fix"]
    assert details["rank"] == rank
    assert details["backend"] == "gloo"


@pytest.mark.parametrize(("rank", "why"), [(0, "`.detach()` at "), (1, "not in the graph")])
def test_a_watch_says_what_its_rank_lacks(
    outcomes: dict[tuple[str, int], Any], rank: int, why: str
) -> None:
    (message,) = outcomes["watched", rank]["result"]
    assert message.startswith(f"on rank {rank}: no gradient for `extra.weight` and `extra.bias`")
    assert why in message
    assert "module." not in message


def test_the_rank_that_lacks_a_gradient_is_the_one_that_reports(
    outcomes: dict[tuple[str, int], Any],
) -> None:
    lacking, waiting = (outcomes["one_rank_lacks_it", rank] for rank in (0, 1))
    assert [code for code, *_ in lacking["found"]] == ["GG504"]
    assert lacking["raised"][0].startswith(ERROR)
    assert waiting["found"] == []
    assert waiting["raised"]
    assert ERROR not in waiting["raised"][0]


EVERYTHING = ["body.weight", "body.bias", "extra.weight", "extra.bias"]


@pytest.mark.parametrize(
    ("case", "parameters", "reason", "fix"),
    [
        (
            "unused_layer",
            ["body.weight", "body.bias"],
            "does not reach `extra.weight` and `extra.bias`: DDP averages none of them",
            "pass `find_unused_parameters=True`",
        ),
        (
            "penalty",
            ["0.weight", "0.bias", "2.weight"],
            "does not reach `2.bias`: DDP averages none of them",
            "Add `0 * output.sum()` to the loss",
        ),
        (
            "replaced",
            EVERYTHING,
            "`body.weight` was replaced or added after the module was wrapped",
            "Replace or add it first. Then wrap the module",
        ),
        (
            "replaced_and_not_waited_for",
            ["body.weight"],
            "`body.weight` was replaced or added after the module was wrapped",
            "Replace or add it first. Then wrap the module",
        ),
        (
            "unfrozen",
            ["body.weight"],
            "`body.weight` was frozen when the module was wrapped",
            "Unfreeze it first. Then wrap the module",
        ),
        (
            "never_synchronized",
            EVERYTHING,
            "every backward pass before it ran inside `no_sync`",
            "Use `no_sync()` for all but the last backward pass before each step",
        ),
        (
            "synchronized_every_second",
            EVERYTHING,
            "every backward pass before it ran inside `no_sync`",
            "Use `no_sync()` for all but the last backward pass before each step",
        ),
        (
            "accumulated_past_ddp",
            EVERYTHING,
            "the forward pass before the backward at line",
            "Call the DDP module itself in training",
        ),
    ],
)
def test_a_single_step_without_all_averages_is_reported(
    outcomes: dict[tuple[str, int], Any], case: str, parameters: list[str], reason: str, fix: str
) -> None:
    for rank in (0, 1):
        ((code, message, details),) = outcomes[case, rank]["found"]
        assert code == "GG502"
        assert details["parameters"] == parameters
        assert reason in message
        assert fix in details["fix"]
    assert outcomes[case, 0]["result"] != outcomes[case, 1]["result"]


@pytest.mark.parametrize(
    ("case", "step", "parameter", "causes"),
    [
        ("penalty", 1, "2.weight", ["GG502"]),
        ("replaced", 1, "body.weight", ["GG502"]),
        ("seed_of_its_own", 1, "weight", ["seed"]),
        ("seed_of_its_own_flat", 1, "weight", ["seed"]),
        ("seed_of_its_own_gathered", 1, "weight", ["seed"]),
        ("skipped_by_hand", 2, "weight", ["skipped-step"]),
        ("loaded_on_rank_0", 1, "body.weight", ["seed"]),
        ("skipped_step", 3, "body.weight", ["skipped-step"]),
        ("never_synchronized", 1, "body.weight", ["GG502"]),
        ("synchronized_every_second", 2, "body.weight", ["GG502"]),
    ],
)
def test_ranks_that_diverge_are_reported_with_the_first_step_and_the_cause(
    outcomes: dict[tuple[str, int], Any],
    case: str,
    step: int,
    parameter: str,
    causes: list[str],
) -> None:
    assert outcomes[case, 0]["result"] != outcomes[case, 1]["result"]
    apart = [found for rank in (0, 1) for found in outcomes[case, rank]["apart"]]
    assert apart  # the rank that comes second has both notes
    for code, message, details in apart:
        assert (code, details["step"]) == ("GG505", step)
        assert parameter in details["parameters"]
        assert details["causes"] == causes
        assert details["difference"] > 0
        assert f"ranks 0 and 1 after step {step}" in message


@pytest.mark.parametrize(
    "case",
    [
        *("used", "penalty_repaired", "replaced_repaired", "averaged_by_hand"),
        *("seed_of_its_own_repaired", "parts_of_each_rank", "sharded_optimizer"),
        *("averages_parameters", "own_head", "method_of_shards_repaired"),
        *("averages_between_synchronized", "penalty_between_synchronized"),
        "shards_reduced_at_last",
    ],
)
def test_ranks_that_stay_equal_or_are_meant_to_differ_are_not_reported(
    outcomes: dict[tuple[str, int], Any], case: str
) -> None:
    first, second = outcomes[case, 0], outcomes[case, 1]
    assert first["raised"] is second["raised"] is None
    assert first["found"] == second["found"] == []
    assert first["apart"] == second["apart"] == []
    assert first["result"] == second["result"]


def test_shards_that_are_never_reduced_are_reported(outcomes: dict[tuple[str, int], Any]) -> None:
    for rank in (0, 1):
        ((code, message, details),) = outcomes["shards_never_reduced", rank]["found"]
        assert code == "GG502"
        assert details["parameters"][:2] == ["body.weight", "body.bias"]
        assert "every backward pass ran with `set_requires_gradient_sync(False)`" in message
        assert "Call `model.set_requires_gradient_sync(True)`" in details["fix"]
        never = outcomes["shards_never_reduced", rank]["result"]
        assert never != outcomes["shards_reduced_at_last", rank]["result"]


@pytest.mark.parametrize("case", ["unused_layer", "penalty", "replaced", "unfrozen"])
def test_the_advice_makes_the_ranks_equal(outcomes: dict[tuple[str, int], Any], case: str) -> None:
    first, second = (outcomes[f"{case}_repaired", rank] for rank in (0, 1))
    assert first["found"] == second["found"] == []
    assert first["result"] == second["result"]


@pytest.mark.parametrize("case", ["replaced_twice", "replaced_before_the_guard"])
def test_a_second_step_says_what_was_replaced(
    outcomes: dict[tuple[str, int], Any], case: str
) -> None:
    ((code, message, details),) = outcomes[case, 0]["found"]
    assert code == "GG504"
    assert details["reason"] == "replaced"
    assert "No gradient for `body.weight`: it was replaced after the model was wrapped" in message
    assert details["fix"].startswith("Replace it before you wrap the model")


def test_it_says_that_only_the_loss_leaves_it_out(outcomes: dict[tuple[str, int], Any]) -> None:
    for rank in (0, 1):
        ((code, message, details),) = outcomes["output_not_in_the_loss", rank]["found"]
        assert code == "GG504"
        assert "`extra.bias` (2 of 4 parameters): the forward pass uses them, but" in message
        assert details["fix"].endswith("if only by `0 * output.sum()`.")
    assert outcomes["output_in_the_loss", 0]["found"] == []
    assert outcomes["output_in_the_loss", 0]["raised"] is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes since Python 3.11")
def test_a_method_that_fsdp_does_not_know_has_a_note(
    outcomes: dict[tuple[str, int], Any],
) -> None:
    for rank in (0, 1):
        _, note = outcomes["method_of_shards", rank]["raised"]
        assert "`features` runs outside of the forward pass of `Sharded`" in note
        assert 'register_fsdp_forward_method(model, "features")' in note
        repaired = outcomes["method_of_shards_repaired", rank]
        assert repaired["raised"] is None
        assert repaired["result"] == outcomes["method_of_one_process", rank]["result"]
