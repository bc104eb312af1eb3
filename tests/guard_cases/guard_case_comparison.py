"""Reads what a program of `programs/` expects, and compares the guard's findings with it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """What one file of `programs/` says of itself, read without importing it.

    Attributes:
        expect: the codes due in each test: those that ``EXPECT`` gives, or that its marks do.
    """

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
    spans, single = {}, []
    for node in tree.body:
        holders = [("", node)]
        if isinstance(node, ast.ClassDef):
            holders = [(f"{node.name}::", inner) for inner in node.body]
        for prefix, inner in holders:
            if isinstance(inner, ast.FunctionDef) and inner.end_lineno is not None:
                spans[prefix + inner.name] = (inner.lineno, inner.end_lineno)
                if inner.name.startswith("test") and not is_parametrised(inner):
                    single.append(prefix + inner.name)
    program = Program(path, tables["EXPECT"], tables["MAY"], tables["DETAILS"], marks, spans)
    for test in single:
        due = {mark.code for mark in program.marks_within(test) if not mark.optional}
        program.expect.setdefault(test, due)
    return program


def is_parametrised(function: ast.FunctionDef) -> bool:
    return any("parametrize" in ast.unparse(one) for one in function.decorator_list)


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
