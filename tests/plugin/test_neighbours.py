"""The guard beside the pytest plugins that people use: each does what it does without the guard."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

PLUGINS = Path(sys.prefix) / "plugins"
"""Where they are, apart: each would be loaded into every run of pytest."""

LOSING = """
import torch
from joblib import Parallel, delayed


def add(tensor, number):
    return tensor + number


def results():
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    return sum(Parallel(n_jobs=2, backend="multiprocessing")(tasks)).mean()


def lose():
    results().backward()
"""

TESTS = """
import random
import time

import joblib.parallel
import pytest
from hypothesis import given, settings, strategies
from losing import lose

def wait(seconds):
    time.sleep(seconds)


@settings(max_examples=3, deadline=None, database=None)
@given(strategies.integers(1, 3))
def test_property(number):
    lose()


@pytest.mark.forked
def test_in_a_child():
    lose()


@pytest.mark.timeout(120)
def test_in_time():
    lose()


@pytest.mark.timeout(3, method="signal")
def test_too_late():
    joblib.Parallel(n_jobs=2, backend="multiprocessing")(
        joblib.delayed(wait)(30) for _ in range(2)
    )


def test_drawn_numbers():
    print("drew", random.random())


def called(*of):
    lose()
    return [joblib.Parallel.__call__.__code__.co_filename == joblib.parallel.__file__, *of]


def test_measured(benchmark):
    assert benchmark(called) == [True]


def test_measured_in_detail(benchmark):
    assert benchmark.pedantic(called, args=("told",), rounds=2) == [True, "told"]


@pytest.mark.parametrize("times", [2, 3])
def test_after_it_was_measured(benchmark, times):
    benchmark(wait, 0)
    for _ in range(times):
        lose()
"""

LOST = {"GG101", "GG102", "GG103"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PLUGINS.is_dir():
        pytest.skip("the plugins are not in .venv/plugins (make test installs them there)")
    made = tmp_path_factory.mktemp("neighbours")
    (made / "pytest.ini").write_text("[pytest]\nmarkers =\n    timeout\n    forked\n")
    (made / "losing.py").write_text(LOSING)
    (made / "test_it.py").write_text(TESTS)
    return made


def run_beside(folder: Path, name: str, *arguments: str) -> Run:
    return run_pytest(
        folder,
        *arguments,
        *("-rA", "-p", "no:asyncio", "-p", "no:cacheprovider", "--randomly-seed=5"),
        *("--benchmark-disable-gc", "--benchmark-min-rounds=2", "--benchmark-max-time=0.01"),
        *("--cov=losing", f"--cov-report=json:{name}.json"),
        environment={"PYTHONPATH": str(PLUGINS), "PYTEST_ADDOPTS": ""},
    )


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Run:
    return run_beside(folder, "on", "--gradguard", "--gradguard-report=report.json")


@pytest.fixture(scope="module")
def bare(folder: Path) -> Run:
    return run_beside(folder, "off", "-p", "no:gradguard")


def outcomes(run: Run) -> dict[str, str]:
    return {
        name: word
        for word, name in re.findall(r"^(PASSED|FAILED|ERROR) test_it.py::(\S+)", run.text, re.M)
    }


LOSE = {"test_property", "test_in_time", "test_after_it_was_measured[2]"} | {
    "test_after_it_was_measured[3]"
}


def test_only_what_loses_fails(guarded: Run, bare: Run) -> None:
    failed = {name for name, word in outcomes(bare).items() if word == "FAILED"}
    assert failed - {"test_in_a_child"} == {"test_too_late"}
    assert set(outcomes(guarded)) == set(outcomes(bare))
    failed = {name for name, word in outcomes(guarded).items() if word == "FAILED"}
    assert failed - {"test_in_a_child"} == {"test_too_late"} | LOSE


def test_each_test_has_its_own_findings(guarded: Run) -> None:
    """With pytest-randomly, hypothesis, pytest-timeout and pytest-benchmark."""
    found = guarded.codes()
    found.pop("test_it.py::test_in_a_child", None)
    assert found == {f"test_it.py::{name}": LOST for name in LOSE}


def test_pytest_benchmark_measures_the_program_itself(guarded: Run) -> None:
    """`joblib.Parallel` is joblib's own while a function is measured, and what it loses is not
    reported; the guard is back for the rest of the test."""
    assert outcomes(guarded)["test_measured"] == "PASSED"
    assert outcomes(guarded)["test_measured_in_detail"] == "PASSED"


def test_pytest_timeout_ends_a_call_as_it_does(guarded: Run, bare: Run) -> None:
    for run in (guarded, bare):
        assert "Failed: Timeout (>3.0s) from pytest-timeout." in run.text


def test_pytest_randomly_draws_the_same(guarded: Run, bare: Run) -> None:
    drawn = [re.findall(r"^drew (\S+)$", run.text, re.M) for run in (guarded, bare)]
    assert drawn[0] == drawn[1] != []
    order = [re.findall(r"^PASSED \S+", run.text, re.M) for run in (guarded, bare)]
    kept = [line for line in order[1] if line in order[0]]
    assert order[0] == kept


def test_pytest_cov_covers_the_same(guarded: Run, bare: Run) -> None:
    lines = [
        json.loads((run.folder / name).read_text())["files"]["losing.py"]["executed_lines"]
        for run, name in ((guarded, "on.json"), (bare, "off.json"))
    ]
    assert lines[0] == lines[1] != []


def test_pytest_forked_brings_findings_back(guarded: Run, bare: Run) -> None:
    if outcomes(bare)["test_in_a_child"] == "FAILED":
        pytest.skip("pytest-forked does not work with this pytest")
    assert outcomes(guarded)["test_in_a_child"] == "FAILED"
    assert guarded.codes()["test_it.py::test_in_a_child"] == LOST
