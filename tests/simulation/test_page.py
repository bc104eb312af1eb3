"""The page on simulated GPUs names every program of its table, and each did what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_simulated_results import HERE, PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "simulated_gpus.md"


def test_the_table_holds_every_program() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = re.search(r"These \d+ programs .*?finding: (.*?)\.\n\n", page, re.DOTALL)
    assert listed
    rows = re.findall(r"^\| (.*?) \| .* \|$", page, re.MULTILINE)[2:]
    named = [" ".join(name.split()).replace(" ", "_") for name in [*listed[1].split(","), *rows]]
    situations = re.findall(
        r"^@(?:situation|refused)\ndef (\w+)", (HERE / "situations.py").read_text(), re.M
    )
    if sorted(named) != sorted(name.strip("_") for name in [*PROGRAMS, *situations]):
        pytest.fail("run: python docs/make_simulation.py > docs/simulated_gpus.md")


def test_all_programs_gave_what_the_cpu_gives() -> None:
    assert "not as on the CPU" not in PAGE.read_text(encoding="utf-8")
