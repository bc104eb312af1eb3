"""Programs drawn at random: what the guard says of them, against the truth of one process.

The numbers are fixed, so that the same programs run each time; `make fuzz` draws others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from judge import Verdict, run_carrying, run_programs
from order_truth import judge_orders

pytest.importorskip("joblib")

PROGRAMS = {"torch": range(60), "rounds": range(60), "tensorflow": range(40)}


@pytest.fixture(scope="module", params=PROGRAMS)
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    family: str = request.param
    pytest.importorskip("tensorflow" if family == "tensorflow" else "torch")
    return run_programs(family, PROGRAMS[family], tmp_path_factory.mktemp(family))


def _told(verdict: Verdict) -> str:
    source = Path(verdict.program).read_text(encoding="utf-8")
    return "\n".join([source[source.index("\ndef work") :], *verdict.outcomes, *verdict.said])


def test_results_are_those_of_the_bare_program(verdicts: list[Verdict]) -> None:
    assert not [_told(verdict) for verdict in verdicts if verdict.changed]


def test_wrong_gradients_are_found(verdicts: list[Verdict]) -> None:
    assert sum(verdict.differs for verdict in verdicts) >= len(verdicts) / 8
    assert not [_told(verdict) for verdict in verdicts if verdict.missed]


def test_right_gradients_are_no_error(verdicts: list[Verdict]) -> None:
    assert sum(not verdict.differs for verdict in verdicts) >= len(verdicts) / 8
    assert not [_told(verdict) for verdict in verdicts if verdict.false_error]


def test_right_gradients_are_no_error_of_the_linter(verdicts: list[Verdict]) -> None:
    assert sum(bool(verdict.foreseen) for verdict in verdicts) >= len(verdicts) / 50
    wrong = [verdict for verdict in verdicts if verdict.foreseen_wrongly]
    assert not [(verdict.foreseen, _told(verdict)) for verdict in wrong]


def test_our_own_parallel_gives_what_one_process_gives(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert not run_carrying(range(1000, 1040), tmp_path)


def test_the_order_of_what_happens_is_that_of_every_way(tmp_path: Path) -> None:
    judged = judge_orders(range(150), tmp_path)
    assert judged.findings >= 25
    assert judged.sure >= 8
    assert not judged.false
    assert not judged.missed
