"""Frameworks that only the tasks import are watched in the workers all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    command = [sys.executable, "-m", "pytest_gradguard", "run", "--report", str(report)]
    command.append(str(program))
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert report.exists(), done.stderr
    found = [
        (finding["code"], finding["details"]["backend"])
        for finding in json.loads(report.read_text())["findings"]
    ]
    assert found == [("GG201", "loky"), ("GG201", "multiprocessing")], done.stderr
