"""`make bench`: what is over its budget, and what was not measured, is said in one line each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench

    yield bench
    for name in ("bench", "lint_speed", "pytest_startup", "scale"):
        sys.modules.pop(name, None)


def test_rows_over_budget_fail(bench, monkeypatch, capsys):
    def measured(names, repeat):
        assert {"off", "on"} == set(names)
        yield bench.Row("off", 1.30, 1.01)  # perhaps over, perhaps noise
        yield bench.Row("on", 9.00, 8.50)

    monkeypatch.setitem(bench.SECTIONS, "start", measured)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "start"])
    assert bench.main() == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setitem(bench.SECTIONS, "start", lambda names, repeat: iter([]))
    assert bench.main() == 1
    assert "start: 'on' was not measured" in capsys.readouterr().err


def test_every_section_has_budgets(bench):
    budget = bench.tomllib.loads((BENCHMARKS / "budget.toml").read_text())
    assert set(budget) == set(bench.SECTIONS)
    assert all(limit > 0 for rows in budget.values() for limit in rows.values())
