"""Results of `torch.distributed.rpc` outside of a distributed autograd context: GG103."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from children import run_python

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("rpc_workers.py")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not torch.distributed.rpc.is_available(), reason="needs TensorPipe"
)


def test_only_backward_passes_that_stop_at_results_are_reported(tmp_path: Path) -> None:
    command = ("-m", "pytest_gradguard", "run", "--report", "found.json", PROGRAM)
    done = run_python(
        *command, folder=tmp_path, limit=240, environment={"PYTHONWARNINGS": "ignore"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["findings"]
    found = [one for one in found if one["severity"] != "info"]
    assert {one["code"] for one in found} == {"GG103"}
    assert {one["location"]["function"]: one["severity"] for one in found} == dict.fromkeys(
        ("train_through_a_function", "train_through_a_proxy", "differentiate_operators"), "error"
    )
    assert all("`autograd.backward(context, [loss])`" in one["fix"] for one in found)
    assert "plain None" in done.stdout
    assert "context True" in done.stdout  # as the advice has it
