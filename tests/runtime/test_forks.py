"""GG303: what hangs without the guard ends under it, is reported, and leaves no worker behind.

That it hangs without is proved in `tests/truth`. Every program runs in a child with a limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from children import run_python
from shared_results import GUARD, until_changed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks and native threads")
pytest.importorskip("joblib")

PROGRAMS = Path(__file__).parent / "fork_programs"
LIMIT = 240
BACKENDS = {"executor.submit": "ProcessPoolExecutor", "in loader": "DataLoader"}
"""The kinds of workers, by what the line of the call says; others are of `multiprocessing`."""
WAYS = {
    "arallel(": "Use the loky backend",
    "executor.submit": "`mp_context=",
    "in loader": 'Give the `DataLoader` `multiprocessing_context="spawn"`',
}
"""What the finding says of the way out, by the line of the call."""


class Run(NamedTuple):
    outcomes: dict[str, str]
    findings: dict[str, list[dict[str, Any]]]
    said: str
    left_behind: bool


def _gone(group: int) -> bool:
    """Whether nothing is left of a process group, once loky's workers had time to notice."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """``run(program)``: how its tests ended under the guard, once."""

    @cache
    def run_once(program: str) -> Run:
        sources = [Path(__file__), PROGRAMS / f"{program}.py"]
        return Run(*json.loads(until_changed(program, sources, [GUARD], partial(ran, program))))

    def ran(program: str) -> str:
        folder = tmp_path_factory.mktemp(program)
        environment = {key: os.environ[key] for key in os.environ if "PYTEST" not in key}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        log, report = folder / "said", folder / "report.json"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--gradguard"]
        command += [f"--gradguard-report={report}", str(PROGRAMS / f"{program}.py")]
        with log.open("w") as file:
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                child.wait(LIMIT)
            except subprocess.TimeoutExpired:
                pass
            left_behind = not _gone(child.pid)
            if left_behind:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        said = log.read_text()
        assert report.exists(), said
        outcomes = {}
        for line in said.splitlines():
            if "::test_" in line and "%]" in line:
                name, outcome = line.split("::")[1].split()[:2]
                outcomes[name] = outcome
        findings: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(report.read_text())["findings"]:
            if finding["severity"] != "info":
                findings.setdefault(finding["test"].rpartition("::")[2], []).append(finding)
        return json.dumps(Run(outcomes, findings, said, left_behind))

    return run_once


@pytest.mark.parametrize("program", ["forks_torch", "forks_tensorflow"])
def test_reported_instead_of_hanging(run: Callable[[str], Run], program: str) -> None:
    pytest.importorskip(program.removeprefix("forks_"))
    done = run(program)
    assert done.outcomes, done.said
    for test, outcome in done.outcomes.items():
        codes = [finding["code"] for finding in done.findings.get(test, [])]
        if test.startswith("test_hangs_"):
            assert (test, codes, outcome) == (test, ["GG303"], "FAILED"), done.said
        else:
            assert (test, codes, outcome) == (test, [], "PASSED"), done.said
    source = (PROGRAMS / f"{program}.py").read_text().splitlines()
    for findings in done.findings.values():
        for finding in findings:
            line = source[finding["location"]["line"] - 1]
            assert "Parallel(**FORK)(" in line or "parallel(delayed" in line or "# hangs" in line
            assert finding["severity"] == "error"
            backend = next((BACKENDS[part] for part in BACKENDS if part in line), "multiprocessing")
            assert finding["details"]["backend"] == backend
            way = next(
                (WAYS[part] for part in WAYS if part in line), "`multiprocessing.get_context("
            )
            assert way in finding["fix"], (line, finding["fix"])
            assert finding["details"]["framework"] == program.removeprefix("forks_")


def test_error_names_the_way_out(run: Callable[[str], Run]) -> None:
    pytest.importorskip("tensorflow")
    said = run("forks_tensorflow").said
    assert "ForkDeadlockError: GG303" in said
    assert "`multiply` would wait forever" in said
    assert "Use the loky backend" in said


@pytest.mark.parametrize("program", ["forks_torch", "forks_tensorflow"])
def test_no_worker_is_left_behind(run: Callable[[str], Run], program: str) -> None:
    pytest.importorskip(program.removeprefix("forks_"))
    assert not run(program).left_behind


def test_a_thread_that_ends_is_no_compute_thread() -> None:
    """One that Python is done with, or has never known, runs and ends as one of a pool would."""
    done = run_python(
        "-c",
        "import _thread, hashlib, time, torch\n"
        "from pytest_gradguard.runtime.pitfalls.forks import openmp\n"
        "def busy():\n"
        "    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 40_000)\n"
        "for _ in range(5):\n"
        "    _thread.start_new_thread(busy, ())\n"
        "    time.sleep(0.005)\n"
        "    assert not openmp.computed()\n"
        "torch.ones(2000, 2000) @ torch.ones(2000, 2000)\n"
        "print(openmp.loaded() is None or openmp.computed())\n",
    )
    assert done.stdout == "True\n", done.stderr
