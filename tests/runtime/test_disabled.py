"""``GRADGUARD_DISABLE=1`` turns everything off: nothing is patched, and nothing is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import run_python

from pytest_gradguard.disabled import is_disabled

OFF = {"GRADGUARD_DISABLE": "1"}
TESTS = """
import sys

import joblib
import pytest
import torch
from joblib import Parallel, delayed

import pytest_gradguard

PLAIN = (joblib.parallel.Parallel.__call__, torch.Tensor.__reduce_ex__, torch.nn.Module.__call__)


def unpatched():
    assert all(not hasattr(one, "__wrapped__") for one in PLAIN)
    assert joblib.parallel.Parallel.__call__ is PLAIN[0]
    return not any("gradguard" in type(one).__module__ for one in sys.meta_path)


def loses():
    x = torch.ones(3, requires_grad=True)
    out = Parallel(2, backend="multiprocessing")(delayed(torch.neg)(x) for _ in range(2))
    out[0].sum().backward()


def test_fixtures(gradguard, watch_gradients):
    watch_gradients(torch.nn.Linear(2, 2))
    loses()
    assert unpatched()
    assert gradguard.findings == []
    assert not torch.cuda.is_available()


def test_functions():
    report = pytest_gradguard.install(mode="error")
    with pytest_gradguard.guard("error", simulate_gpu=1) as inner:
        with pytest_gradguard.watch_gradients(torch.nn.Linear(2, 2)):
            loses()
        assert unpatched()
    pytest_gradguard.uninstall()
    assert report.findings == inner.findings == []
"""
PROGRAM = """
import torch
from joblib import Parallel, delayed
x = torch.ones(3, requires_grad=True)
Parallel(2, backend="multiprocessing")(delayed(torch.neg)(x) for _ in range(2))
"""


def assert_says_that_nothing_was_watched(report: Path) -> None:
    """An empty report would look like a clean run."""
    said = json.loads(report.read_text())
    assert said["findings"] == []
    assert said["guarded"] == "nothing (GRADGUARD_DISABLE is set)"
    (error,) = said["errors"]
    assert error["path"] == "<environment>"
    assert error["message"] == "GRADGUARD_DISABLE is set: nothing was watched"


def test_pytest_runs_as_without_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_off.py").write_text(TESTS)
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--gradguard", "-rw")
    report = tmp_path / "report.json"
    more = ("--gradguard-fail-on=warning", "--gradguard-simulate-gpu=1")
    written = f"--gradguard-report={report}"
    done = run_python(*command, *more, written, folder=tmp_path, environment=OFF)
    assert done.returncode == 0, done.stdout
    assert "gradguard: off (GRADGUARD_DISABLE is set)" in done.stdout
    assert "GradGuard" not in done.stdout
    assert_says_that_nothing_was_watched(report)


def test_gradguard_run_runs_the_program_alone(tmp_path: Path) -> None:
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(PROGRAM)
    command = ("-m", "pytest_gradguard", "run", "--report", report, program)
    done = run_python(*command, environment=OFF)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "gradguard: off (GRADGUARD_DISABLE is set)\n"
    assert_says_that_nothing_was_watched(report)


@pytest.mark.parametrize(
    ("value", "off"),
    [("1", True), ("true", True), ("0", False), ("", False), ("False", False), ("no", False)],
)
def test_what_counts_as_set(value: str, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADGUARD_DISABLE", value)
    assert is_disabled() is off
