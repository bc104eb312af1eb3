"""The examples, as `make demo` runs them: what their comments promise is what is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

ROOT = Path(__file__).parents[2]
LOST = {"GG101", "GG102", "GG103"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    report = tmp_path_factory.mktemp("demo") / "report.json"
    run = run_pytest(
        ROOT, "--gradguard", "--gradguard-fail-on=never", f"--gradguard-report={report}", "examples"
    )
    return Run(report.parent, run.status, run.text)


def test_all_pass(demo: Run) -> None:
    assert demo.status == pytest.ExitCode.OK
    assert "7 passed" in demo.text


def test_reports_what_the_comments_say(demo: Run) -> None:
    found: dict[str, set[str]] = {}
    for finding in demo.report()["findings"]:
        found.setdefault(Path(finding["test"].partition("::")[0]).name, set()).add(finding["code"])
    assert found == {
        "test_a_changed_in_a_worker.py": LOST,
        "test_b_summed_in_a_worker.py": LOST,
        "test_d_ensemble.py": {"GG107"},
        "test_e_backward_in_a_worker.py": {"GG106", "GG107"},
        "test_f_closure.py": LOST,
        "test_g_same_numbers.py": {"GG305"},
    }


def test_comments_name_the_codes(demo: Run) -> None:
    for finding in demo.report()["findings"]:
        example = ROOT / finding["test"].partition("::")[0]
        assert finding["code"] in example.read_text(encoding="utf-8")


def test_summary_counts(demo: Run) -> None:
    assert re.search(r"^4 errors, 7 warnings in 5 tests; 2 info findings not", demo.text, re.M)
