"""The page on simulated GPUs names every program of its table, and each did what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_simulated_results import HERE, PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "simulated_gpus.md"


def test_the_table_holds_every_program() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    named = [row[0].removeprefix("| ").replace(" ", "_") for row in rows if len(row) == 5][2:]
    situations = re.findall(
        r"^@(?:situation|refused)\ndef (\w+)", (HERE / "situations.py").read_text(), re.M
    )
    if sorted(named) != sorted([*PROGRAMS, *situations]):
        pytest.fail("run: python docs/make_simulation.py > docs/simulated_gpus.md")


def test_all_programs_gave_what_the_cpu_gives() -> None:
    assert "not as on the CPU" not in PAGE.read_text(encoding="utf-8")
