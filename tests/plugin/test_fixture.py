"""The fixture `gradguard` where the guard is off: only the tests that ask for it are guarded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

TESTS = """
import joblib.parallel
import pytest
import torch
from joblib import Parallel, delayed

unpatched = joblib.parallel.BatchedCalls, Parallel.__call__, torch.Tensor.backward


def add(tensor, number):
    return tensor + number


def lose():
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    sum(Parallel(n_jobs=2, backend="multiprocessing")(tasks)).mean().backward()


def test_before():
    assert (joblib.parallel.BatchedCalls, Parallel.__call__, torch.Tensor.backward) == unpatched
    lose()


def test_asks(gradguard):
    assert gradguard.findings == []
    lose()
    assert {finding.code for finding in gradguard.findings} == {"GG101", "GG102", "GG103"}


def test_allows(gradguard):
    with pytest.raises(ValueError, match="GG999"):
        with gradguard.allow("GG999"):
            pass
    with gradguard.allow("GG101", "GG103", reason="shown to work"):
        lose()
    assert {finding.code for finding in gradguard.findings} == {"GG102"}


def test_asks_late(request):
    lose()
    guard = request.getfixturevalue("gradguard")
    assert guard.findings == []
    lose()
    assert len(guard.findings) == 3


@pytest.mark.usefixtures("gradguard")
@pytest.mark.gradguard(fail_on="never")
def test_named():
    lose()


@pytest.fixture
def losing():
    lose()


@pytest.mark.gradguard(fail_on="never")
def test_fixture_of_another_comes_first(losing, gradguard):
    assert len(gradguard.findings) == 3


def test_after():
    assert (joblib.parallel.BatchedCalls, Parallel.__call__, torch.Tensor.backward) == unpatched
    lose()
"""

FOUND = {
    "test_fixture.py::test_asks": {"GG101", "GG102", "GG103"},
    "test_fixture.py::test_allows": {"GG102"},
    "test_fixture.py::test_asks_late": {"GG101", "GG102", "GG103"},
    "test_fixture.py::test_named": {"GG101", "GG102", "GG103"},
    "test_fixture.py::test_fixture_of_another_comes_first": {"GG101", "GG102", "GG103"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fixture")
    (made / "test_fixture.py").write_text(TESTS)
    return made


def failed(run: Run) -> list[str]:
    return sorted(re.findall(r"^FAILED \S+::(\w+)", run.text, re.M))


def test_only_tests_that_ask_are_guarded(folder: Path) -> None:
    run = run_pytest(folder, "--gradguard-report=report.json")
    assert run.codes() == FOUND
    assert failed(run) == ["test_asks", "test_asks_late"]
    assert "gradguard: only for tests that use its fixture" in run.text
    assert run.report()["guarded"] == (
        "the tests that use the fixtures gradguard, watch_gradients and check_gradients"
    )
    assert re.search(r"^gradguard: report of the tests .*: of all\) written to ", run.text, re.M)


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    "flag",
    ["--gradguard-report=report.json", "--gradguard-fail-on=warning", "--gradguard-annotate=never"],
)
def test_a_flag_without_effect_is_refused(tmp_path: Path, flag: str, how: list[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    print('it ran')\n")
    run = run_pytest(tmp_path, flag, "-s", *how)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert re.findall(r"^.*has no effect.*$", run.text, re.M) == [
        f"ERROR: {flag.partition('=')[0]} has no effect: --gradguard is missing, and no test uses "
        "the fixture gradguard, watch_gradients or check_gradients"
    ]
    assert "it ran" not in run.text
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
def test_a_key_turns_the_guard_on(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    by_the_key = run_pytest(
        tmp_path, "--gradguard-report=report.json", "-o", "gradguard=true", *how
    )
    assert by_the_key.status == pytest.ExitCode.OK
    assert "guarded" not in by_the_key.report()


def test_summary_without_any_flag(folder: Path) -> None:
    run = run_pytest(folder, "-k", "named or before")
    assert run.status == pytest.ExitCode.OK
    assert re.search(r"^1 error, 2 warnings in 1 test$", run.text, re.M)


def test_summary_without_any_flag_under_xdist(folder: Path) -> None:
    run = run_pytest(folder, "-n2", "-k", "named or allows")
    assert run.status == pytest.ExitCode.OK
    assert re.search(r"^1 error, 2 warnings in 2 tests$", run.text, re.M)


def test_asking_changes_nothing_where_all_are_guarded(folder: Path) -> None:
    run = run_pytest(folder, "--gradguard", "--gradguard-report=all.json", "-k", "asks or allows")
    found = run.codes("all.json")
    assert found["test_fixture.py::test_allows"] == {"GG102"}
    assert found["test_fixture.py::test_asks"] == {"GG101", "GG102", "GG103"}
    # the guard was there before this test asked for it
    assert "assert [" in run.text
