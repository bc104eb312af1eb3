"""A few drawn objects and programs, the same each time; `make fuzz` draws others."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import run_python

HERE = Path(__file__).parent


def test_the_guard_finds_what_is_there_once_it_is_unpickled() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("hypothesis")
    done = run_python(HERE / "containers.py", "7", "150", limit=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_takes_any_program(tmp_path: Path) -> None:
    arguments = (HERE / "linter.py", "7", "60", tmp_path)
    done = run_python(*arguments, limit=300, environment={"PYTHONPATH": str(HERE.parent)})
    assert done.returncode == 0, done.stdout + done.stderr
