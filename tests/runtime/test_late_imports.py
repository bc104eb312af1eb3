"""Frameworks that only the tasks import are watched in the workers all the same."""

from __future__ import annotations

import json
from pathlib import Path

from children import run_python

PROGRAM = """
import sys
from joblib import Parallel, delayed

def needs_cuda(index):
    import torch
    try:
        torch.zeros(2).cuda()
    except (AssertionError, RuntimeError):
        pass

def leaves_a_gradient(index):
    import torch
    weights = torch.ones(3, requires_grad=True)
    weights.sum().backward()
    return weights.grad.tolist()

if __name__ == "__main__":
    Parallel(2)(delayed(needs_cuda)(i) for i in range(2))
    Parallel(2)(delayed(leaves_a_gradient)(i) for i in range(2))
    Parallel(2, backend="multiprocessing")(delayed(needs_cuda)(i) for i in range(2))
    Parallel(2, backend="multiprocessing")(delayed(leaves_a_gradient)(i) for i in range(2))
    assert "torch" not in sys.modules
"""


def test_cuda_is_seen_in_the_first_batch_that_imports_torch(tmp_path: Path) -> None:
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(PROGRAM)
    command = ("-m", "pytest_gradguard", "run", "--report", report, program)
    done = run_python(*command, limit=240)
    assert report.exists(), done.stderr
    found = [
        (finding["code"], finding["details"]["backend"])
        for finding in json.loads(report.read_text())["findings"]
    ]
    assert found == [("GG201", "loky"), ("GG201", "multiprocessing")], done.stderr
