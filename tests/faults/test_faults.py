"""Faults of the guard, and bad circumstances, change nothing (`make faults` tries all)."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import run_python

pytest.importorskip("torch")
HERE = Path(__file__).parent
NOT_ALLOWED = "may not mount"
CASES = (
    "misbehaving",
    "dying",
    "counted",
    "no_tasks",
    "odd_tensors",
    "inherited",
    "small_files",
    "nowhere_to_write",
    "no_shared_memory",
    "full_disk",
    "few_descriptors",
    "little_memory",
    "fork_under_locks",
    "many_threads",
)


def test_a_sample_of_planted_faults() -> None:
    done = run_python(
        HERE / "sweep.py",
        *("executors", "dask_threads", "--sample", "8", "--anew"),
        limit=400,
        environment={"PYTHONPATH": str(HERE)},
        faults=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_that_gets_through_is_seen() -> None:
    """Nobody takes what is raised by that which undoes the last patches."""
    done = run_python(
        HERE / "sweep.py",
        *("executors", "--function", "watching:stop", "--anew", "--strict"),
        limit=400,
        environment={"PYTHONPATH": str(HERE)},
        faults=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "left in place" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_same_in_bad_circumstances(case: str) -> None:
    bare, guarded = (
        run_python(HERE / "circumstances.py", case, how, limit=200, forked="torch")
        for how in ("bare", "guarded")
    )
    if NOT_ALLOWED in bare.stderr:
        pytest.skip("this user may not mount file systems")
    assert bare.returncode == 0, bare.stderr
    assert (guarded.stdout, guarded.returncode) == (bare.stdout, 0), guarded.stderr
    assert "gradguard itself failed" not in guarded.stderr


def test_many_installs_leave_nothing() -> None:
    """Neither a patched name nor memory that grows."""
    done = run_python(HERE / "installs.py", limit=300, forked="torch")
    assert done.returncode == 0, done.stdout + done.stderr
