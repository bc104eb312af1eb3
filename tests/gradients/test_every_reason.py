"""The tables hold at least three programs for each reason that a diagnosis can give."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from pathlib import Path

import pytest

from pytest_gradguard import gradients
from pytest_gradguard.gradients import reasons

_HERE = Path(__file__).parent
_GRADIENTS = Path(inspect.getfile(gradients)).parent
_KINDS = {
    name: value.kind
    for name, value in vars(reasons).items()
    if isinstance(value, type) and issubclass(value, reasons.Reason) and value.kind
}

# The files of a framework's table, and the table's decorator.
_TABLES = {
    "torch": (
        [
            "losing_programs.py",
            "losing_outcomes.py",
            "losing_in_workers.py",
            "losing_exits.py",
            "losing_as_written.py",
        ],
        "loses",
    ),
    "tensorflow": (
        ["tensorflow_programs.py", "tensorflow_outcomes.py"],
        "expects",
    ),
}


def _given(framework: str) -> set[str]:
    """The kinds of the reasons that the modules of a framework make."""
    return {
        _KINDS[node.func.attr]
        for module in _GRADIENTS.glob(f"{framework}_*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "reasons"
        and node.func.attr in _KINDS
    }


def _bodies(table: Path, decorator: str) -> list[tuple[str, str]]:
    """Reason and body of each program; of one with another reason in old releases, both."""
    found = []
    for node in ast.parse(table.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == decorator:
                given = call.args[0]
                named = (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,)
                body = "\n".join(map(ast.dump, node.body))
                found += [(ast.literal_eval(one), body) for one in named]
    return found


@pytest.mark.parametrize("framework", _TABLES)
def test_each_reason_has_three_different_programs(framework: str) -> None:
    tables, decorator = _TABLES[framework]
    bodies = {body for table in tables for body in _bodies(_HERE / table, decorator)}
    counts = Counter(reason for reason, _ in bodies)
    wanted = _given(framework)
    assert len(wanted) >= 10
    assert {kind: counts[kind] for kind in wanted if counts[kind] < 3} == {}


def test_no_reason_is_left_without_a_diagnosis() -> None:
    given = {kind for framework in _TABLES for kind in _given(framework)}
    assert given == set(_KINDS.values())


def test_a_variable_is_not_told_to_require_grad() -> None:
    source = (_GRADIENTS / "tensorflow_watch.py").read_text(encoding="utf-8")
    assert "reasons.Frozen(" not in source
    reason = reasons.NotTrainable(None)
    assert reason.kind == reasons.Frozen.kind
    assert "trainable=False" in reason.text()
    assert "`trainable = True`" in reason.fix().replace("layer.", "")
    assert "requires_grad" not in reason.text() + reason.fix()
