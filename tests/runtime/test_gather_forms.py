"""GG501 is reported where the loss depends on own rows without a graph, in whatever form."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks the second rank")

PROGRAM = Path(__file__).with_name("gather_forms.py")
FORMS = re.findall(r"@(same|right|wrong|advised)\ndef (\w+)", PROGRAM.read_text())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    done = run_python(PROGRAM, folder, limit=240, forked="torch")
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def names(*kinds: str) -> list[str]:
    return [name.strip("_") for kind, name in FORMS if kind in kinds]


@pytest.mark.parametrize("name", names("same", "right", "wrong"))
def test_it_is_reported_where_the_own_rows_count(outcomes: list[dict[str, Any]], name: str) -> None:
    for outcome in outcomes:
        bare, guarded = outcome[name]
        assert guarded["found"] == (["GG501"] if name in names("wrong") else [])
        assert (guarded["gradient"], guarded["next"]) == (bare["gradient"], bare["next"])


@pytest.mark.parametrize("name", names("same"))
def test_what_is_silent_has_the_gradient_of_the_list(
    outcomes: list[dict[str, Any]], name: str
) -> None:
    expected = outcomes[0]["own_slot"][0]["mean"]
    assert outcomes[0][name][0]["mean"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", names("advised"))
def test_the_advice_gives_the_gradient_of_one_process(
    outcomes: list[dict[str, Any]], name: str
) -> None:
    if name not in outcomes[0]:
        pytest.skip("Accelerate is not installed")
    _, guarded, repaired, one_process = outcomes[0][name]
    expected = pytest.approx(one_process["mean"], rel=1e-4, abs=1e-6)
    assert guarded["found"] == ["GG501"]
    assert repaired["found"] == []
    assert guarded["mean"] != expected
    assert repaired["mean"] == expected
