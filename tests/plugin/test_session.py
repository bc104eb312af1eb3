"""The whole run: work outside of tests, unusual kinds of tests, and the report as a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest

HELPERS = """
import torch
from joblib import Parallel, delayed


def add(tensor, number):
    return tensor + number


def results():
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    return sum(Parallel(n_jobs=2, backend="multiprocessing")(tasks)).mean()
"""

IMPORTING = """
from losing import results

at_import = results()


def test_harmless():
    pass


def test_backward():
    at_import.backward()
"""

UNUSUAL = """
import os

import pytest
from losing import results


def documented():
    '''
    >>> documented().backward()
    '''
    return results()


@pytest.mark.asyncio
async def test_coroutine():
    results().backward()


def test_elsewhere(tmp_path):
    os.chdir(tmp_path)
    results().backward()


runs = []


@pytest.mark.flaky(reruns=1)
def test_better_the_second_time():
    runs.append(1)
    if len(runs) == 1:
        results().backward()


@pytest.mark.parametrize("number", range(5))
def test_many(number):
    results()
"""

ALL = {"GG101", "GG102", "GG103"}
STRICT = "error::pytest_gradguard.GradGuardWarning"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("session")
    (made / "losing.py").write_text(HELPERS)
    (made / "test_importing.py").write_text(IMPORTING)
    (made / "test_unusual.py").write_text(UNUSUAL)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    pytest.importorskip("pytest_asyncio")
    pytest.importorskip("pytest_rerunfailures")
    return run_pytest(
        folder,
        *("--gradguard", "--doctest-modules", "-rA", "--junitxml=r.xml"),
        "--gradguard-report=report.json",
    )


def test_every_kind_of_test_has_its_findings(run: Run) -> None:
    many = {f"test_unusual.py::test_many[{number}]": {"GG101", "GG102"} for number in range(5)}
    assert run.codes() == {
        None: {"GG101", "GG102"},  # the import of the module belongs to no test
        "test_importing.py::test_backward": {"GG103"},
        "test_unusual.py::test_unusual.documented": ALL,
        "test_unusual.py::test_coroutine": ALL,
        "test_unusual.py::test_elsewhere": ALL,
        **many,
    }


def test_a_better_second_run_is_what_counts(run: Run) -> None:
    assert re.search(r"^PASSED \S+::test_better_the_second_time$", run.text, re.M)
    assert "test_unusual.py::test_better_the_second_time" not in run.codes()


def test_a_test_may_leave_the_folder(run: Run) -> None:
    paths = {finding["location"]["path"] for finding in run.report()["findings"]}
    assert paths == {"losing.py", "test_importing.py", "test_unusual.py"}
    failure = run.text[run.text.index("_ test_elsewhere _") :]
    assert re.search(r"--> test_unusual.py:\d+:\d+ in test_elsewhere$", failure, re.M)
    assert "results().backward()" in failure


def test_a_doctest_is_reported_at_its_line(run: Run) -> None:
    line = UNUSUAL.splitlines().index("    >>> documented().backward()") + 1
    (found,) = (
        finding
        for finding in run.report()["findings"]
        if "documented" in (finding["test"] or "") and finding["code"] == "GG103"
    )
    assert found["location"]["line"] == line
    text = UNUSUAL.splitlines()[line - 1]
    assert text[found["location"]["column"] - 1 :] == "documented().backward()"


def test_summary_names_few_of_many_tests(run: Run) -> None:
    section = run.text[run.text.index("= gradguard =") :]
    assert re.search(r" and \d+ more$", section, re.M)
    assert re.search(r"^\d errors, 2 warnings in 9 tests$", section, re.M)


def test_import_is_one_finding_under_xdist(folder: Path) -> None:
    options = ("--gradguard", "--dist=loadfile", "test_importing.py")
    one = run_pytest(folder, *options, "--gradguard-report=one.json")
    two = run_pytest(folder, *options, "-n2", "--gradguard-report=two.json")
    found = one.report("one.json")["findings"]
    assert [finding["test"] for finding in found if finding["code"] == "GG101"] == [None]
    for finding in two.report("two.json")["findings"]:
        assert finding in found
    assert len(two.report("two.json")["findings"]) == len(found)
    assert "outside of tests" in one.text
    assert "the run fails" not in one.text  # a test fails, and warnings fail nothing


LOSING_OUTSIDE = {
    "conftest.py": (
        "from losing import results\n\n"
        "results().backward()\n\n\n"
        "def pytest_sessionfinish():\n"
        "    results().backward()\n"
    ),
    "test_module.py": (
        "from losing import results\n\nresults().backward()\n\n\ndef test_it():\n    pass\n"
    ),
}


@pytest.fixture
def losing_outside(tmp_path: Path) -> Path:
    (tmp_path / "losing.py").write_text(HELPERS)
    for name, text in LOSING_OUTSIDE.items():
        (tmp_path / name).write_text(text)
    return tmp_path


FAILS = r"^gradguard: the run fails \(exit status 1\): 3 errors outside of tests$"


@pytest.mark.parametrize("how", [["-q"], ["-n2"], ["--co"], ["-k", "none"]], ids=" ".join)
def test_a_loss_outside_of_tests_fails_the_run(losing_outside: Path, how: list[str]) -> None:
    run = run_pytest(losing_outside, "--gradguard", "--gradguard-report=report.json", *how)
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert re.search(FAILS, run.text, re.M)
    lost = [one for one in run.report()["findings"] if one["code"] == "GG103"]
    assert [(one["location"]["path"], one["location"]["line"], one["count"]) for one in lost] == [
        *(("conftest.py", 3, 1), ("conftest.py", 7, 1), ("test_module.py", 3, 1))
    ]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--gradguard-fail-on=never"], 0),
        (["-o", "gradguard_ignore=GG103", "--gradguard-fail-on=error"], 0),
        (["-o", "gradguard_ignore=GG103", "--gradguard-fail-on=warning"], 1),
    ],
    ids=["never", "warnings alone", "warnings"],
)
def test_what_fails_the_run_is_what_fails_a_test(
    losing_outside: Path, options: list[str], status: int
) -> None:
    run = run_pytest(losing_outside, "--gradguard", *options)
    assert run.status == status
    assert ("the run fails" in run.text) == (status == 1)
    assert "1 passed" in run.text


SLOW = """
import pathlib
import threading
import time

import torch
from joblib import Parallel, delayed
from losing import results


def wait_for(name):
    for _ in range(6000):
        if pathlib.Path(name).exists():
            return
        time.sleep(0.01)


def in_time(number):
    pathlib.Path("started").touch()
    wait_for("go")
    return torch.ones(3, requires_grad=True) * number


def lose_late():
    wait_for("go")
    results().backward()


def call_early():
    Parallel(n_jobs=2, backend="multiprocessing")(delayed(in_time)(n) for n in range(2))


threads = []


def start(work):
    threads.append(threading.Thread(target=work))
    threads[0].start()


def finish():
    pathlib.Path("go").touch()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("start(lose_late)", "1 error, 2 warnings outside of tests"),
        ("start(call_early)\n    wait_for('started')", "1 warning after the end of test_it.py::it"),
    ],
    ids=["all of it", "its results"],
)
def test_what_a_thread_loses_after_the_last_test_fails_the_run(
    tmp_path: Path, test: str, found: str, how: list[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_functions = it\n")
    (tmp_path / "losing.py").write_text(HELPERS)
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "test_it.py").write_text(f"from slow import *\n\n\ndef it():\n    {test}\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_sessionfinish():\n    import slow\n\n    slow.finish()\n"
    )
    run = run_pytest(tmp_path, "--gradguard", "--gradguard-fail-on=warning", *how)
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in run.text
    assert f"gradguard: the run fails (exit status 1): {found}\n" in run.text


def test_nothing_found_is_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    (tmp_path / "out").mkdir()
    run = run_pytest(tmp_path, "--gradguard", "--gradguard-report=out/report.json")
    assert run.report("out/report.json") == {
        "schema": 1,
        "tool": {"name": "gradguard", "version": run.report("out/report.json")["tool"]["version"]},
        "findings": [],
        "summary": {"error": 0, "warning": 0, "info": 0},
        "errors": [],
        "cut": [],
    }
    assert "= gradguard =" not in run.text


def test_a_report_that_cannot_be_written_in_the_end_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "test_it.py").write_text("import os\ndef test_it():\n    os.rmdir('out')\n")
    run = run_pytest(
        tmp_path, "--gradguard", "--gradguard-report=out/r.json", "--gradguard-html=page.html"
    )
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "1 passed" in run.text
    said = r"^gradguard: .*/out/r.json: cannot be written: there is no folder .*/out$"
    assert re.search(said, run.text, re.M)


def test_collecting_alone_writes_a_report_without_findings(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False\n")
    run = run_pytest(tmp_path, "--gradguard", "--co", "--gradguard-report=report.json")
    assert run.status == pytest.ExitCode.OK
    assert run.report()["findings"] == []


def test_pytest_within_a_guarded_test_leaves_the_guard_in_force(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['pytester']\n")
    (tmp_path / "losing.py").write_text(HELPERS)
    (tmp_path / "test_it.py").write_text(
        "from losing import results\n\n"
        "def test_it(pytester):\n"
        "    pytester.makepyfile(test_inner='def test_inner(gradguard): pass')\n"
        "    pytester.runpytest_inprocess('--gradguard').assert_outcomes(passed=1)\n"
        "    results()\n"
        "    import pytest_gradguard\n"
        "    pytest_gradguard.uninstall()\n"
        "    results().backward()\n"
    )
    run = run_pytest(tmp_path, "--gradguard", "--gradguard-report=report.json")
    assert run.codes() == {"test_it.py::test_it": ALL}
    counts = {one["code"]: one["count"] for one in run.report()["findings"]}
    assert counts["GG101"] == 4


@pytest.mark.parametrize("options", [[], ["-W", STRICT]], ids=["default", "strict"])
def test_a_fault_of_the_guard_fails_nobody(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pytest_gradguard.runtime.kernel.collector import innermost\n\n"
        "class Broken:\n"
        "    def build(self):\n"
        "        raise RuntimeError('broken')\n\n"
        "def test_it():\n"
        "    innermost().evidence('key', Broken)\n"
    )
    run = run_pytest(tmp_path, "--gradguard", *options, faults=True)
    assert run.status == pytest.ExitCode.OK
    assert "INTERNALERROR" not in run.text
    assert options or "gradguard itself failed" in run.text


HOSTILE = """
import json, os, pickle, pytest

class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)

ENTRY = {
    **{"code": "GG101", "name": "x", "severity": "warning", "origin": "runtime", "message": "m"},
    **{"location": {"path": "a.py", "line": 3}, "trace": [], "explains": [], "mark": None},
}
NOTES = [
    *("", "[", "7", "[7]", "[" * 100_000, "9" * 100_000, pickle.dumps(Evil(), 0).decode()),
    *(json.dumps([{**ENTRY, "location": where}]) for where in ({"path": "a", "line": "x"}, None)),
    *(json.dumps([{**ENTRY, "message": 7}]), json.dumps([{**ENTRY, "details": [7]}])),
]

def pytest_generate_tests(metafunc):
    metafunc.parametrize("number", range(len(NOTES)))

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    number = int(report.nodeid.partition("[")[2].rstrip("]"))
    if "PYTEST_XDIST_WORKER" not in os.environ:  # it warns once in each process
        report.user_properties.append(("gradguard", NOTES[number]))

def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", {})
    output["gradguard_findings"] = output["gradguard_calls"] = "[7]"
"""


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
def test_what_is_no_finding_is_left_out_of_the_report(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "test_notes.py").write_text("def test_note(number): pass")
    (tmp_path / "conftest.py").write_text(HOSTILE)
    run = run_pytest(tmp_path, "--gradguard", "--gradguard-report=report.json", *how, faults=True)
    assert run.status == 0, run.text
    assert "11 passed" in run.text
    assert run.report()["findings"] == []
    assert not (tmp_path / "ran").exists()
    assert run.text.count("gradguard itself failed") <= 1


DYING = """
import os
import signal

import torch
from joblib import Parallel, delayed


def double(weight):
    return weight * 2


def lose():
    weight = torch.ones(2, requires_grad=True)
    sum(Parallel(2)(delayed(double)(weight) for _ in range(2))).sum().backward()


def test_before():
    lose()


def test_that_ends_the_run():
    lose()
    {end}
"""


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "signal"]
)
def test_a_run_that_ends_in_a_test_has_a_report(tmp_path: Path, end: str) -> None:
    (tmp_path / "test_dying.py").write_text(DYING.format(end=end), encoding="utf-8")
    done = run_pytest(tmp_path, "--gradguard", "--gradguard-report=report.json")
    assert done.status == (3 if "_exit" in end else -9), done.text
    for test in ("test_before", "test_that_ends_the_run"):
        assert "GG103" in done.codes()[f"test_dying.py::{test}"]
    shown = done.text.count("error[GG103]")
    assert shown == ("_exit" in end), done.text  # both tests lose it at one line
