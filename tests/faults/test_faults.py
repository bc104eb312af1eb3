"""Faults of the guard, and bad circumstances, change nothing (`make faults` tries all)."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import run_python

pytest.importorskip("torch")
HERE = Path(__file__).parent
CASES = (
    "misbehaving",
    "dying",
    "small_files",
    "nowhere_to_write",
    "few_descriptors",
    "little_memory",
    "fork_under_locks",
    "many_threads",
)


def test_a_sample_of_planted_faults() -> None:
    done = run_python(
        HERE / "sweep.py",
        *("executors", "dask_threads", "--sample", "8"),
        limit=400,
        environment={"PYTHONPATH": str(HERE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_where_none_is_allowed_is_seen() -> None:
    """What stands for the program's own function is the one place where nobody can catch it."""
    done = run_python(
        HERE / "sweep.py",
        *("executors", "--function", "submits.wrap.submit", "--all"),
        limit=400,
        environment={"PYTHONPATH": str(HERE)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no warning" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_same_in_bad_circumstances(case: str) -> None:
    bare, guarded = (
        run_python(HERE / "circumstances.py", case, how, limit=200, forked=True)
        for how in ("bare", "guarded")
    )
    assert bare.returncode == 0, bare.stderr
    assert (guarded.stdout, guarded.returncode) == (bare.stdout, 0), guarded.stderr


def test_many_installs_leave_nothing() -> None:
    """Neither a patched name nor memory that grows."""
    done = run_python(HERE / "installs.py", limit=300, forked=True)
    assert done.returncode == 0, done.stdout + done.stderr
