"""Programs drawn at random: what the guard says of them, against the truth of one process.

The numbers are fixed, so that the same programs run each time; `make fuzz` draws others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from judge import Verdict, run_carrying, run_programs
from order_truth import Judged, judge_orders
from shared_results import GUARD, LINTER, until_changed

pytest.importorskip("joblib")

PROGRAMS = {"torch": range(60), "rounds": range(60), "tensorflow": range(40)}


def judged(key: str, produce: Callable[[], Any]) -> Any:
    """What `produce` gives, as plain values, where that is not known."""
    here = sorted(Path(__file__).parent.glob("*.py"))
    return json.loads(
        until_changed(f"oracle-{key}", here, [GUARD, LINTER], lambda: json.dumps(produce()))
    )


@pytest.fixture(scope="module", params=PROGRAMS)
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    family: str = request.param
    pytest.importorskip("tensorflow" if family == "tensorflow" else "torch")
    folder = tmp_path_factory.mktemp(family)
    found = judged(
        family, lambda: list(map(asdict, run_programs(family, PROGRAMS[family], folder)))
    )
    return [Verdict(**verdict) for verdict in found]


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


def test_a_comparison_says_what_one_process_says(verdicts: list[Verdict]) -> None:
    assert not [_told(verdict) for verdict in verdicts if verdict.compared_wrongly]


def test_our_own_parallel_gives_what_one_process_gives(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert not judged("carrying", lambda: run_carrying(range(1000, 1040), tmp_path))


def test_the_order_of_what_happens_is_that_of_every_way(tmp_path: Path) -> None:
    found = Judged(**judged("order", lambda: asdict(judge_orders(range(150), tmp_path))))
    assert found.findings >= 25
    assert found.sure >= 8
    assert not found.false
    assert not found.missed
