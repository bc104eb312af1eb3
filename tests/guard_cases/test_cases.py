"""Runs the programs of `programs/` under the guard and compares what it reports, test by test.

Each file of `programs/` is a plain pytest file that knows nothing of the guard. It says what is
expected of it in three ways:

* a trailing comment ``# -> GG101 GG103:error``: at this statement a finding of that code (and of
  that severity) is due. Every finding has to lie at a statement that says so, and every such
  statement inside a test's own body has to be reported for that test. ``GG102?`` allows a finding
  without asking for it;
* ``EXPECT``: for a test in whose body not all of that is written (a helper reports it, or the test
  is parametrised), the exact set of codes at severity warning and above;
* ``DETAILS``: for a test and a code, some of the finding's ``details``.

``MAY`` holds codes that a test may have or not; `AMBIGUOUS`, below, says why.

Every group of files runs twice in child processes, with the guard and without: every test has to
end alike. What is known already, for nothing has changed that it depends on, runs no child
(`shared_results`). Those for GPUs
(`case_gpu_*.py`) run once, with two pretended ones, and pass there.
Scripts (`programs/script_*.py`) run as programs of their own, under `gradguard run`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from children import run_python
from guard_case_comparison import brief, complaints, read_program
from shared_results import GUARD, is_known, remembered, until_changed

pytest.importorskip("torch")
pytest.importorskip("joblib")

# Kept out of the exact comparison: the contract's words leave the verdict open, or timing decides.
AMBIGUOUS = {
    "case_results::test_dataclass": "is a dataclass a plain container of a result?",
    "case_results::test_simple_namespace": "is a SimpleNamespace a plain container?",
    "case_backward::test_dataclass_result": "GG103 is certain; GG102 as above",
    "case_backward::test_estimator_result": "GG103 is certain; GG102 is info by the contract",
    "case_backward::test_grad_for_the_source": (
        "autograd.grad for the source alone gives None; no gradient is given to the result"
    ),
    "case_backward::test_partial_grad_for_the_source": "the same, with part of the gradient",
    "case_dispatch::test_processes_in_processes": "the shipping is a worker's, not the parent's",
    "case_dispatch::test_generator_dropped": "what was pickled before the drop is timing",
    "case_forms::test_live_tensor_in_an_error": "the error hands the tensor back, not the result",
    "case_forms::test_distribution_result": "is a distribution a plain container?",
    "case_picklers::test_subclass_that_detaches_itself": "what is pickled no longer requires grad",
    "case_picklers::test_reducer_in_the_dispatch_table": "the same",
    "case_picklers::test_forward_reducers": "the same",
    "case_picklers::test_multiprocessing_reducer": "the same",
    "case_picklers::test_object_that_pickles_itself_to_bytes": (
        "a pickling inside the pickling, by the program itself"
    ),
    "case_failures::test_unpicklable_beside_a_tensor": "the task never left",
    "case_sklearn::test_bagging_of_torch_estimators": (
        "fitted estimators that keep their last loss are shipped again by predict"
    ),
    "case_sklearn::test_multi_output": "the same",
}

# What the contract's words ask for and the guard does not say yet.
KNOWN_MISSES = {
    "case_picklers::test_subclass_with_own_reduce_ex": "a subclass that pickles itself is not seen",
    "case_picklers::test_result_with_own_reduce_ex": "the same",
}

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 600
SKIPPED_ON_PURPOSE = ("nothing to do here", "enough")
"""Reasons of tests about skipping itself; every other skipped test lacks a library or a device."""
HOW_TO_SKIP = "to skip a file, mark it (`pytestmark`); `importorskip` leaves no test to compare"
TENSORFLOW = "case_tf_"
GPU = "case_gpu_"
"""Files that begin so run with two simulated GPUs, and only so: without, they have none."""
EXECUTED = ("case_memory",)
"""Files whose workers are not forked: a finding would fall to what is at the bottom there."""
# Files that share a child share its loky workers, too: starting them is the cost here.
ALONE = (
    *EXECUTED,
    "case_plain",
    "case_multiprocessing",
    "case_failures",
    "case_doors",
    "case_event_loop",
    "case_interpreters",
    "case_dask",
    "case_keras_torch",
)
AT_ONCE = 9
"""How many files share a child at most."""
FORKS = {"JOBLIB_START_METHOD": "fork"} if sys.version_info >= (3, 14) else {}
"""joblib's multiprocessing backend forks in the programs, as before Python 3.14."""
CHOSEN = os.environ.get("GRADGUARD_GUARD_CASES", "case_*").split()
"""The programs that are run; the cells of the matrix of versions take some."""
ALL_PROGRAMS = {
    path.stem: read_program(path)
    for path in sorted(path for chosen in CHOSEN for path in PROGRAMS.glob(f"{chosen}.py"))
}


def group_of(name: str) -> tuple[str, ...]:
    """The files that run in one child with this one."""
    if name in ALONE:
        return (name,)
    kind = kind_of(name)
    alike = [n for n in ALL_PROGRAMS if n not in ALONE and kind_of(n) == kind]
    first = alike.index(name) // AT_ONCE * AT_ONCE
    return tuple(alike[first : first + AT_ONCE])


def in_its_group(*values: str) -> Any:
    """Parameters that begin with a file's name: under xdist its group's tests stay together."""
    return pytest.param(*values, id=f"{'::'.join(values)}@{group_of(values[0])[0]}")


def kind_of(name: str) -> str:
    """Files of TensorFlow's, and those for simulated GPUs, have children of their own."""
    return next((kind for kind in (TENSORFLOW, GPU) if name.startswith(kind)), "")


@dataclass(frozen=True)
class Run:
    """One child: how each test ended, and the findings of each; keys are ``file::test``."""

    outcomes: dict[str, str]
    findings: dict[str, list[dict[str, Any]]]
    errors: list[Any]
    output: str


def outcomes_of(junit: Path) -> dict[str, str]:
    """How each test ended: passed, or failure, error, skipped with the first line of the reason."""
    outcomes = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        verdict = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                text = (child.get("message") or "").splitlines()[:1]
                verdict = " ".join([child.tag, child.get("type", ""), *text])
        owner = case.get("classname", "").split(".")
        outcomes["::".join([*owner, case.get("name", "")])] = verdict
    return outcomes


def run_child(group: tuple[str, ...], guarded: bool) -> Run:
    """Runs a group of files in a child, in a folder of its own.

    Raises:
        AssertionError: the child hung, or ended in something else than test results.
    """
    # A folder whose name sounds like the library: the user's own files are still the user's.
    with tempfile.TemporaryDirectory(prefix="joblib-torch-") as folder:
        files = [shutil.copy(ALL_PROGRAMS[name].path, folder) for name in group]
        flags = ["--gradguard", "--gradguard-fail-on=never", "--gradguard-report=r.json"]
        if kind_of(group[0]) == GPU:
            flags.append("--gradguard-simulate-gpu=2")
        command = ["-m", "pytest", "-q", "--junitxml=junit.xml", "-p", "no:cacheprovider"]
        command += [*(flags if guarded else []), *(Path(file).name for file in files)]
        forked = "tensorflow" if kind_of(group[0]) == TENSORFLOW else "torch"
        if group[0] in EXECUTED:
            forked = ""
        done = run_python(*command, folder=folder, limit=LIMIT, forked=forked, environment=FORKS)
        output = done.stdout + done.stderr
        assert done.returncode != 5, f"no test ran; {HOW_TO_SKIP}\n{output}"
        assert done.returncode in (0, 1), output
        outcomes = outcomes_of(Path(folder, "junit.xml"))
        findings: dict[str, list[dict[str, Any]]] = defaultdict(list)
        errors: list[Any] = []
        if guarded:
            report = json.loads(Path(folder, "r.json").read_text(encoding="utf-8"))
            errors = report["errors"]
            for finding in report["findings"]:
                if finding["severity"] != "info":
                    findings[owner_of(finding)].append(finding)
    return Run(outcomes, dict(findings), errors, output)


@functools.cache
def guarded_run(group: tuple[str, ...]) -> Run:
    sources = [Path(__file__), *(ALL_PROGRAMS[name].path for name in group)]

    def ran() -> str:
        return json.dumps(asdict(run_child(group, guarded=True)))

    return Run(**json.loads(until_changed(f"guarded-{group[0]}", sources, [GUARD], ran)))


def run(name: str) -> Run:
    if kind_of(name) == TENSORFLOW and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    return guarded_run(group_of(name))


def ends_of(name: str, outcomes: dict[str, str]) -> dict[str, str]:
    """How the tests of one file ended."""
    return {key: end for key, end in outcomes.items() if key.startswith(f"{name}::")}


def bare_ends(name: str) -> dict[str, str]:
    """How the tests of a file end without the guard.

    Raises:
        AssertionError: one of them fails.
    """
    unknown = [one for one in group_of(name) if not is_known(*bare(one))]
    if name in unknown:
        done = run_child(tuple(unknown), guarded=False)
        for one in unknown:
            ends = ends_of(one, done.outcomes)
            failed = [key for key, end in ends.items() if end.startswith(("failure", "error"))]
            assert one != name or not failed, done.output
            if not failed:
                remembered(*bare(one), functools.partial(json.dumps, ends, indent=0))
    return json.loads(remembered(*bare(name), pytest.fail))


def bare(name: str) -> tuple[str, list[Path]]:
    """What `shared_results` knows of a file's run without the guard: its key and its sources."""
    return f"bare-{name}", [ALL_PROGRAMS[name].path]


def owner_of(finding: dict[str, Any]) -> str:
    """The test that a finding names, as ``file::test``."""
    path, _, test = (finding["test"] or "no test").partition("::")
    return f"{Path(path).stem}::{test}"


CASES = [(name, test) for name, program in ALL_PROGRAMS.items() for test in program.expect]


def cases_with_known_misses() -> list[Any]:
    cases = []
    for name, test in CASES:
        case = in_its_group(name, test)
        if known := KNOWN_MISSES.get(f"{name}::{test}"):
            case = case._replace(marks=[pytest.mark.xfail(reason=known, strict=True)])
        cases.append(case)
    return cases


@pytest.mark.parametrize(("name", "test"), cases_with_known_misses())
def test_findings(name: str, test: str) -> None:
    program, key = ALL_PROGRAMS[name], f"{name}::{test}"
    guarded = run(name)
    assert key in guarded.outcomes, f"{key} did not run; {HOW_TO_SKIP}\n{guarded.output}"
    outcome = guarded.outcomes[key]
    if outcome.startswith("skipped") and not outcome.endswith(SKIPPED_ON_PURPOSE):
        pytest.skip(outcome)
    findings = guarded.findings.get(key, [])
    wrong = complaints(program, test, findings)
    assert not wrong, "\n".join([*wrong, "reported:", brief(findings)])


@pytest.mark.parametrize("name", list(map(in_its_group, ALL_PROGRAMS)))
def test_every_test_is_expected(name: str) -> None:
    """No test is left out, and no finding belongs to something that is no test."""
    guarded = run(name)
    known = {f"{name}::{test}" for test in ALL_PROGRAMS[name].expect}
    assert {key for key in guarded.outcomes if key.startswith(f"{name}::")} == known
    everything = {f"{case}::{test}" for case, test in CASES}
    strangers = [
        f for key in guarded.findings if key not in everything for f in guarded.findings[key]
    ]
    assert not strangers, brief(strangers)
    assert guarded.errors == []
    assert "gradguard itself failed" not in guarded.output, guarded.output


@pytest.mark.parametrize(
    "name", [in_its_group(name) for name in ALL_PROGRAMS if kind_of(name) != GPU]
)
def test_same_outcome_without_the_guard(name: str) -> None:
    assert ends_of(name, run(name).outcomes) == bare_ends(name), run(name).output


@pytest.mark.parametrize(
    "name", [in_its_group(name) for name in ALL_PROGRAMS if kind_of(name) == GPU]
)
def test_passes_on_pretended_gpus(name: str) -> None:
    ends = ends_of(name, run(name).outcomes)
    assert set(ends.values()) == {"passed"}, run(name).output


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_programs_do_not_know_the_guard(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from)\s+(pytest_)?gradguard", source, re.MULTILINE)


def test_tables_fit_together() -> None:
    """Tests with optional codes are exactly those that `AMBIGUOUS` gives a reason for."""
    optional = {f"{name}::{test}" for name, program in ALL_PROGRAMS.items() for test in program.may}
    assert optional == {one for one in AMBIGUOUS if one.partition("::")[0] in ALL_PROGRAMS}
    for name, program in ALL_PROGRAMS.items():
        assert set(program.details) <= set(program.expect), name
        assert set(program.may) <= set(program.expect), name
    if CHOSEN == ["case_*"]:
        clean = [test for name, test in CASES if not ALL_PROGRAMS[name].expect[test]]
        assert len(clean) > len(CASES) / 3


def finding_at(line: int, code: str = "GG101", severity: str = "warning") -> dict[str, Any]:
    where = {"path": "case_x.py", "line": line, "column": 1}
    details = {"object": "args[0]", "shape": [3]}
    about = {"message": "", "location": where, "details": details}
    return {"code": code, "severity": severity, **about}


def test_comparison_notices_what_is_wrong(tmp_path: Path) -> None:
    """Each kind of fault that a guard can have is a complaint here."""
    path = tmp_path / "case_x.py"
    path.write_text(
        'DETAILS = {"test_a": {"GG101": {"object": "args[0]", "shape": [3]}}}\n'
        "def test_a():\n"
        "    call(\n"
        "        x)  # -> GG101:warning\n"
        "def test_b():\n"
        "    call(x)\n"
    )
    program = read_program(path)
    right = finding_at(4)
    assert complaints(program, "test_a", [right]) == []
    assert complaints(program, "test_b", []) == []
    wrong = {
        "missed": ("test_a", []),
        "false alarm": ("test_b", [right]),
        "not the user's line": ("test_a", [right, finding_at(7)]),
        "no GG101 at line": ("test_a", [finding_at(7)]),
        "is error": ("test_a", [finding_at(4, severity="error")]),
        "details": ("test_a", [{**right, "details": {"object": "args[1]", "shape": [3]}}]),
        "listed 2 times": ("test_a", [right, right]),
    }
    for complaint, (test, findings) in wrong.items():
        assert complaint in "\n".join(complaints(program, test, findings)), complaint


# --- scripts: what `__main__` holds is pickled with the functions that use it ----------------


def run_script(path: Path, *command: str) -> str:
    """How a script ends, with `command` before its own: its status, what it wrote, and a report."""
    with tempfile.TemporaryDirectory(prefix="guard-cases-") as folder:
        shutil.copy(path, folder)
        done = run_python(*command, path.name, "one", "--two", folder=folder)
        report = Path(folder, "r.json")
        text = report.read_text(encoding="utf-8") if report.exists() else ""
    return json.dumps([done.returncode, done.stdout, done.stderr, text], indent=0)


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("script_*.py")), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    under = ("-m", "pytest_gradguard", "run", "--report", "r.json")
    guarded = functools.partial(run_script, path, *under)
    alone = remembered(f"bare-{path.stem}", [path], functools.partial(run_script, path))
    bare_status, bare_out, bare_err, _ = json.loads(alone)
    status, out, err, report = json.loads(
        until_changed(f"guarded-{path.stem}", [Path(__file__), path], [GUARD], guarded)
    )
    told = bare_out + bare_err + out + err
    assert status == bare_status, told
    for line in bare_out.splitlines():
        assert line in out, told
    assert report, told
    found = {
        (finding["code"], finding["location"]["line"], finding["severity"])
        for finding in json.loads(report)["findings"]
        if finding["severity"] != "info"
    }
    wrong = []
    marks = read_program(path).marks
    for mark in marks:
        fitting = {f for f in found if f[0] == mark.code and mark.first <= f[1] <= mark.last}
        if not fitting and not mark.optional:
            wrong.append(f"no {mark.code} at line {mark.first}")
        if mark.severity and any(severity != mark.severity for *_, severity in fitting):
            wrong.append(f"{mark.code} at line {mark.first} is not {mark.severity}")
        found -= fitting
    wrong += [f"false alarm {finding}" for finding in sorted(found)]
    assert not wrong, "\n".join([*wrong, told])
