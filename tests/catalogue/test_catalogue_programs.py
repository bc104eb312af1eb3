"""The catalogue's programs do what their entries say, and detectors say so.

Each prints what its comments say (``# prints: …``), or raises it (``# raises: …``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from children import run_python
from shared_results import GUARD, folder_of_the_run, once, remembered, until_changed

from gradguard_lint.rules import codes as rule_codes
from pytest_gradguard.pitfalls import catalogue, codes, files, get
from pytest_gradguard.runtime import CHECKS

RUNNER = Path(__file__).with_name("run_programs.py")

TENSORFLOW = ("GG105", "GG110", "GG401", "GG402", "GG403", "GG404")
ON_A_GPU = ("GG201", "GG202", "GG203", "GG204", "GG205")
APART = ("GG104", "GG109", "GG115", "GG302", "GG303", "GG405")
TORCH = tuple(code for code in codes() if code not in (*TENSORFLOW, *ON_A_GPU, *APART))

# GG303 computes with all threads in the parent, after which no fork may follow: it comes last.
GROUPS = (
    tuple(f"{code}_{kind}" for code in TORCH for kind in ("bad", "good"))
    + tuple(f"{code}_bad" for code in ON_A_GPU)
    + tuple(f"{code}_good" for code in ON_A_GPU)
    + ("GG302_good", "GG303_good"),
    tuple(f"{code}_{kind}" for code in TENSORFLOW for kind in ("bad", "good")),
    ("GG405_bad", "GG405_good"),
    # Workers that live on would know the module of the other program.
    ("GG109_bad",),
    ("GG109_good",),
)
"""Programs that share a process."""

LEFT_OUT = {
    "GG104_bad": "it is a test, and run as one below",
    "GG104_good": "it is a test, and run as one below",
    "GG115_bad": "it is a test, and run as one below",
    "GG115_good": "it is a test, and run as one below",
    "GG302_bad": "a race, which can crash the interpreter",
    "GG303_bad": "it hangs, and is run as such below",
}

NEEDS = {
    **dict.fromkeys((*TORCH, *ON_A_GPU), ("torch", "joblib", "numpy")),
    **dict.fromkeys(("GG109", "GG302", "GG303"), ("torch", "joblib", "numpy")),
    **dict.fromkeys(TENSORFLOW, ("tensorflow", "keras", "joblib", "dask", "sklearn")),
    "GG405": ("distributed", "joblib"),
}
NEEDS["GG205"] += ("sklearn", "skorch")

COMES_WITH = {
    "GG103": {"GG101", "GG102"},  # the graph had to be dropped before
    "GG203": {"GG201"},  # the forked workers use CUDA
    "GG204": {"GG201"},  # what the variable is set for
}
"""Codes that a bad program inevitably has besides its own."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """All programs, each in a folder of its own."""
    root = folder_of_the_run(tmp_path_factory) / "programs"
    root.mkdir(exist_ok=True)
    once(root, "written", lambda: write_programs(root))
    return root


def write_programs(root: Path) -> str:
    for pitfall in catalogue():
        for kind in ("bad", "good"):
            place = root / f"{pitfall.code}_{kind}"
            place.mkdir()
            for name, text in files(getattr(pitfall, kind)).items():
                (place / name).write_text(text)
    return "yes"


def text_of(program: str) -> str:
    code, kind = program.split("_")
    return getattr(get(code), kind)


def missing(program: str) -> list[str]:
    return [name for name in NEEDS[program.split("_")[0]] if find_spec(name) is None]


@cache
def outcomes(folder: Path, group: tuple[str, ...]) -> dict[str, Any]:
    names = [program for program in group if not missing(program)]
    forked = "tensorflow" if group[0].startswith(TENSORFLOW) else "torch"
    sources = [
        Path(__file__),
        RUNNER,
        *(it for name in names for it in folder.glob(f"{name}/*.py")),
    ]
    said = until_changed(
        f"catalogue-{group[0]}",
        sources,
        [GUARD],
        lambda: run(RUNNER, folder, *names, forked=forked),
    )
    found: dict[str, Any] = {"said": said}
    for line in said.splitlines():
        if line.startswith('{"program":'):
            record = json.loads(line)
            found[record["program"]] = record
    return found


def run(*arguments: str | Path, folder: Path | None = None, forked: str = "torch") -> str:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    done = run_python(*arguments, limit=300, folder=folder, environment=quiet, forked=forked)
    return done.stdout + done.stderr


def group_of(program: str) -> tuple[str, ...]:
    """The programs that it shares a process with."""
    return next(group for group in GROUPS if program in group)


@pytest.fixture
def outcome(request, folder):
    program = request.param
    if lacking := missing(program):
        pytest.skip(f"{', '.join(lacking)} not installed")
    found = outcomes(folder, group_of(program))
    assert program in found, found["said"]
    return found[program]


def test_every_program_is_run_or_left_out_for_a_reason():
    programs = [f"{p.code}_{kind}" for p in catalogue() for kind in ("bad", "good")]
    grouped = [program for group in GROUPS for program in group]
    assert sorted([*grouped, *LEFT_OUT]) == sorted(programs)


def parametrized(programs: Iterable[str]) -> Any:
    """The ids name those that share a process, which stay together (see `scheduling`)."""
    names = [(program, program) for program in programs]
    return pytest.mark.parametrize(
        ("program", "outcome"),
        names,
        indirect=["outcome"],
        ids=[f"{name}@case_{group_of(name)[0]}" for name, _ in names],
    )


LESS_AT_RUN_TIME = {"GG304"}
"""Reported as information by the guard, which cannot tell whether it does harm."""

RUN_ANYWHERE = [
    program
    for group in GROUPS
    for program in group
    if program not in {f"{code}_bad" for code in ON_A_GPU}
]


@parametrized(RUN_ANYWHERE)
def test_a_program_does_what_its_comments_say(program, outcome):
    text = text_of(program)
    promised = re.findall(r"# raises: (.*)", text)
    assert (outcome["raises"] or [None])[0] == (promised[0] if promised else None), outcome
    assert outcome["prints"] == re.findall(r"# prints: (.*)", text)


@parametrized(f"{code}_bad" for code in ON_A_GPU)
def test_a_program_for_a_gpu_runs_on_pretended_ones(program, outcome):
    if program == "GG203_bad":
        assert "Cannot re-initialize CUDA in forked subprocess" in outcome["raises"][1]
    else:
        assert outcome["raises"] is None
        assert outcome["prints"]


@parametrized(f"{code}_bad" for code in sorted(CHECKS) if f"{code}_bad" not in LEFT_OUT)
def test_the_guard_reports_a_bad_program_as_its_code(program, outcome):
    code = program.split("_")[0]
    severity = "info" if code in LESS_AT_RUN_TIME else get(code).severity.label
    assert outcome["found"].get(code) == severity
    assert set(outcome["found"]) - {"GG107"} <= {code} | COMES_WITH.get(code, set())


@parametrized(program for program in RUN_ANYWHERE if program.endswith("_good"))
def test_the_guard_is_silent_on_a_good_program(program, outcome):
    assert [code for code, severity in outcome["found"].items() if severity != "info"] == []


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("kind", "without_gradient"),
    [("bad", ["body.weight", "body.bias"]), ("good", [])],
)
def test_the_programs_of_gg104_leave_gradients_out_or_not(kind, without_gradient):
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(text_of(f"GG104_{kind}"), "main.py", "exec"), namespace)
    watched: list[Any] = []
    namespace["test_every_parameter_learns"](watched.append)
    (model,) = watched
    assert [n for n, p in model.named_parameters() if p.grad is None] == without_gradient


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("kind", "given"), [("bad", 1.0), ("good", 3.0)])
def test_the_programs_of_gg115_give_such_gradients(kind, given):
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(text_of(f"GG115_{kind}"), "main.py", "exec"), namespace)
    checked: list[Any] = []
    namespace["test_the_gradient_is_right"](lambda *args: checked.extend(args))
    closure, weight = checked
    closure().backward()
    assert weight.grad.tolist() == [given, given]


@pytest.mark.skipif(sys.platform != "linux", reason="native threads at a fork: Linux")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_bad_program_of_gg303_hangs(folder):
    program = folder / "GG303_bad" / "main.py"
    assert remembered("hangs-GG303_bad", [program], lambda: str(hangs(program))) == "True"


def hangs(program: Path) -> bool:
    """Whether a program stands still after the first line that it promises to print."""
    first, *_ = re.findall(r"# prints: (.*)", program.read_text(encoding="utf-8"))
    child = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == first  # the parent's part is done
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return False


@cache
def lint_codes(folder: Path) -> dict[str, set[str]]:
    """The codes that the linter reports in each program's folder."""
    options = ("--no-cache", "--exit-zero", "--min-severity=info", "--output-format=json")
    said = run("-m", "pytest_gradguard", "lint", *options, ".", folder=folder)
    found: dict[str, set[str]] = {}
    for finding in json.loads(said)["findings"]:
        program = finding["location"]["path"].split("/")[0]
        found.setdefault(program, set()).add(finding["code"])
    return found


@pytest.mark.parametrize("code", [p.code for p in catalogue()])
def test_the_linter_reports_the_bad_program_and_not_the_good_one(code, folder):
    found = lint_codes(folder)
    expected = ({code} | COMES_WITH.get(code, set())) & set(rule_codes())
    assert found.get(f"{code}_bad", set()) == expected
    assert found.get(f"{code}_good", set()) == set()
