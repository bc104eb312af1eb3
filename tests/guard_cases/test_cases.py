"""Runs the programs of `programs/` under the guard and compares what it reports, test by test.

Each file of `programs/` is a plain pytest file that knows nothing of the guard. It says what is
expected of it in three ways:

* ``EXPECT``: for each test, the exact set of codes at severity warning and above;
* a trailing comment ``# -> GG101 GG103:error``: at this statement a finding of that code (and of
  that severity) is due. Every finding has to lie at a statement that says so, and every such
  statement inside a test's own body has to be reported for that test. ``GG102?`` allows a finding
  without asking for it;
* ``DETAILS``: for a test and a code, some of the finding's ``details``.

``MAY`` holds codes that a test may have or not: where the contract leaves the verdict open
(`AMBIGUOUS`, below, says why), or where it depends on timing.

Each file runs twice in a child process of its own, with the guard and without: every test has to
end alike.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("joblib")

AMBIGUOUS: dict[str, str] = {}

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 150
COMMENT = re.compile(r"#.*?->((?: GG\d{3}(?::\w+)?\??)+)\s*$")
MARK = re.compile(r"(GG\d{3})(?::(\w+))?(\?)?")


@dataclass(frozen=True)
class Mark:
    """A statement (its first and last line) that says which code is reported there."""

    code: str
    first: int
    last: int
    severity: str | None
    optional: bool


@dataclass
class Program:
    """What one file of `programs/` says of itself, read without importing it."""

    path: Path
    expect: dict[str, set[str]]
    may: dict[str, set[str]]
    details: dict[str, dict[str, dict[str, Any]]]
    marks: list[Mark]
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def marks_within(self, test: str) -> list[Mark]:
        first, last = self.spans.get(test.partition("[")[0], (0, -1))
        return [mark for mark in self.marks if first <= mark.first <= last]


def statement_at(tree: ast.Module, line: int) -> tuple[int, int]:
    """The first and last line of the innermost statement at `line`; of a compound one, its head."""
    smallest = (1, 10**6)
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno
        if node.lineno <= line <= last and last - node.lineno <= smallest[1] - smallest[0]:
            smallest = (node.lineno, last)
    return smallest


def read_program(path: Path) -> Program:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    tables: dict[str, Any] = {"EXPECT": {}, "MAY": {}, "DETAILS": {}}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in tables:
                tables[name] = ast.literal_eval(node.value)
    marks = []
    for line, text in enumerate(source.splitlines(), start=1):
        if found := COMMENT.search(text):
            for code, severity, optional in MARK.findall(found[1]):
                first, last = statement_at(tree, line)
                marks.append(Mark(code, first, last, severity or None, bool(optional)))
    spans = {}
    for node in tree.body:
        holders = [("", node)]
        if isinstance(node, ast.ClassDef):
            holders = [(f"{node.name}::", inner) for inner in node.body]
        for prefix, inner in holders:
            if isinstance(inner, ast.FunctionDef) and inner.end_lineno is not None:
                spans[prefix + inner.name] = (inner.lineno, inner.end_lineno)
    return Program(path, tables["EXPECT"], tables["MAY"], tables["DETAILS"], marks, spans)


ALL_PROGRAMS = {path.stem: read_program(path) for path in sorted(PROGRAMS.glob("case_*.py"))}


@dataclass(frozen=True)
class Run:
    """One child: how each test ended, and the findings of each."""

    outcomes: dict[str, str]
    findings: dict[str, list[dict[str, Any]]]
    errors: list[Any]
    output: str


def outcomes_of(junit: Path) -> dict[str, str]:
    """How each test ended: passed, failed, error, skipped or xfailed."""
    outcomes = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        owner = case.get("classname", "").split(".")[1:]
        verdict = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                kind = child.get("type", "") if child.tag == "skipped" else ""
                text = (child.get("message") or "").splitlines()[:1]
                verdict = f"{child.tag} {kind} {' '.join(text)}".strip()
        outcomes["::".join([*owner, case.get("name", "")])] = verdict
    return outcomes


@functools.cache
def run(name: str, guarded: bool) -> Run:
    """Runs one file in a child, in a folder of its own.

    Raises:
        AssertionError: the child hung, or ended in something else than test results.
    """
    program = ALL_PROGRAMS[name]
    with tempfile.TemporaryDirectory(prefix="guard-cases-") as folder:
        shutil.copy(program.path, folder)
        flags = ["--gradguard", "--gradguard-fail-on=never", "--gradguard-report=r.json"]
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml=junit.xml"]
        command += [*(flags if guarded else []), "-p", "no:cacheprovider", program.path.name]
        environment = {key: os.environ[key] for key in os.environ if "PYTEST" not in key}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise AssertionError(f"{name} hung (guarded: {guarded})\n{expired.stdout!r}") from None
        output = done.stdout + done.stderr
        assert done.returncode in (0, 1), output
        outcomes = outcomes_of(Path(folder, "junit.xml"))
        findings: dict[str, list[dict[str, Any]]] = defaultdict(list)
        errors: list[Any] = []
        if guarded:
            report = json.loads(Path(folder, "r.json").read_text(encoding="utf-8"))
            errors = report["errors"]
            for finding in report["findings"]:
                if finding["severity"] != "info":
                    findings[test_name(finding)].append(finding)
    return Run(outcomes, dict(findings), errors, output)


def test_name(finding: dict[str, Any]) -> str:
    """The test that a finding names, without the file."""
    return (finding["test"] or "(no test)").partition("::")[2] or str(finding["test"])


test_name.__test__ = False  # type: ignore[attr-defined]


def plain(key: str, value: Any) -> Any:
    """A detail in one spelling: a shape as a list, a dtype without its module."""
    if key == "shape":
        return list(value)
    if key in ("dtype", "device"):
        return str(value).removeprefix("torch.")
    return value


def same_detail(key: str, wanted: Any, found: Any) -> bool:
    if isinstance(wanted, (set, tuple)):
        return any(same_detail(key, one, found) for one in wanted)
    return bool(plain(key, wanted) == plain(key, found))


def brief(findings: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"  {f['code']} {f['severity']} {f['location']['path']}:{f['location']['line']}"
        f" {f['message']} {f['details']}"
        for f in findings
    )


def complaints(program: Program, test: str, findings: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the findings of one test."""
    wrong = []
    codes = {finding["code"] for finding in findings}
    expected, may = program.expect[test], program.may.get(test, set())
    if missed := expected - codes:
        wrong.append(f"missed {sorted(missed)}")
    if false := codes - expected - may:
        wrong.append(f"false alarm {sorted(false)}")
    reported = set()
    for finding in findings:
        code, where = finding["code"], finding["location"]
        line = where["line"]
        fitting = [m for m in program.marks if m.code == code and m.first <= line <= m.last]
        reported.update(fitting)
        if Path(where["path"]).name != program.path.name or not fitting:
            wrong.append(f"{code} is said of {where['path']}:{line}, not the user's line")
        elif fitting[0].severity not in (None, finding["severity"]):
            wrong.append(f"{code} at line {line} is {finding['severity']}: {fitting[0].severity}")
    for mark in program.marks_within(test):
        due = mark.code in expected and not mark.optional
        if due and mark not in reported:
            wrong.append(f"no {mark.code} at line {mark.first}")
    for code, wanted in program.details.get(test, {}).items():
        candidates = [finding["details"] for finding in findings if finding["code"] == code]
        fits = any(
            all(same_detail(key, value, details.get(key)) for key, value in wanted.items())
            for details in candidates
        )
        if candidates and not fits:
            wrong.append(f"details of {code}: wanted {wanted}")
    repeated = Counter(
        (f["code"], f["location"]["path"], f["location"]["line"], f["location"]["column"])
        for f in findings
    )
    wrong += [f"{key} is listed {times} times" for key, times in repeated.items() if times > 1]
    return wrong


CASES = [(name, test) for name, program in ALL_PROGRAMS.items() for test in program.expect]


@pytest.mark.parametrize(("name", "test"), CASES, ids=[f"{n}::{t}" for n, t in CASES])
def test_findings(name: str, test: str) -> None:
    program = ALL_PROGRAMS[name]
    guarded = run(name, True)
    assert test in guarded.outcomes, f"{test} did not run\n{guarded.output}"
    if guarded.outcomes[test].startswith("skipped pytest.skip"):
        pytest.skip(guarded.outcomes[test])
    findings = guarded.findings.get(test, [])
    wrong = complaints(program, test, findings)
    assert not wrong, "\n".join([*wrong, "reported:", brief(findings)])


@pytest.mark.parametrize("name", ALL_PROGRAMS)
def test_every_test_is_expected(name: str) -> None:
    """No test is left out, and no finding belongs to something that is no test of the file."""
    guarded = run(name, True)
    known = set(ALL_PROGRAMS[name].expect)
    assert set(guarded.outcomes) == known
    strangers = [
        f for test in guarded.findings if test not in known for f in guarded.findings[test]
    ]
    assert not strangers, brief(strangers)
    assert guarded.errors == []


@pytest.mark.parametrize("name", ALL_PROGRAMS)
def test_same_outcome_without_the_guard(name: str) -> None:
    bare = run(name, False)
    failed = {test: end for test, end in bare.outcomes.items() if end.startswith(("fail", "err"))}
    assert not failed, bare.output
    assert run(name, True).outcomes == bare.outcomes, run(name, True).output


@pytest.mark.parametrize("name", ALL_PROGRAMS)
def test_programs_do_not_know_the_guard(name: str) -> None:
    source = ALL_PROGRAMS[name].path.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from)\s+(pytest_)?gradguard", source, re.MULTILINE)
