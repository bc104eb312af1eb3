"""torchdata's loader: a batch that cannot be sent is an error, and others are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import run_python

pytest.importorskip("torch")
pytest.importorskip("torchdata")

PROGRAM = Path(__file__).with_name("stateful_loader.py")
GUARDED = ("-m", "pytest_gradguard", "run")


def test_a_batch_with_a_graph_ends_the_loader(tmp_path: Path) -> None:
    done = run_python(*GUARDED, PROGRAM, "graphs", folder=tmp_path, forked="torch")
    assert done.returncode == 1
    assert "error[GG102]" in done.stderr
    assert "`Features.__getitem__` returns a tensor with its graph" in done.stderr


def test_batches_and_states_are_as_without_the_guard(tmp_path: Path) -> None:
    bare = run_python(PROGRAM, "rows", folder=tmp_path, forked="torch")
    guarded = run_python(*GUARDED, PROGRAM, "rows", folder=tmp_path, forked="torch")
    assert bare.returncode == 0, bare.stderr
    assert guarded.stdout == bare.stdout
    assert "gradguard: no findings" in guarded.stderr
