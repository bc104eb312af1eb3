"""`multiprocess`, where it is installed: its pools and processes, forked and spawned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import run_python

pytest.importorskip("multiprocess")

PROGRAM = """
import json
import multiprocess
import torch
from pytest_gradguard import guard

def double(x):
    return x * 2

def total(x):
    return float(x.sum())

def learn(model):
    model.weight.sum().backward()

def main(method):
    context = multiprocess.get_context(method)
    x = torch.ones(3, requires_grad=True)
    with guard("record") as report:
        with context.Pool(1) as pool:
            out = pool.map(double, [x * 1, x * 1])
            (out[0] + out[1]).sum().backward()
            assert pool.starmap(total, [(x.detach(),)] * 2) == [3.0, 3.0]
        model = torch.nn.Linear(2, 2).share_memory()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        process = context.Process(target=learn, args=(model,))
        process.start()
        process.join()
        optimizer.step()
    assert not hasattr(multiprocess.pool.Pool.apply_async, "__wrapped__")
    found = {(one.code, one.details["backend"]) for one in report.findings}
    return sorted(found - {("GG107", "multiprocess")})

if __name__ == "__main__":
    print(json.dumps({method: main(method) for method in ("fork", "spawn")}))
"""


def test_what_crosses_is_seen_as_with_multiprocessing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python(program, forked="torch")
    assert done.returncode == 0, done.stderr
    codes = [[code, "multiprocess"] for code in ("GG101", "GG102", "GG103", "GG106")]
    assert json.loads(done.stdout) == {"fork": codes, "spawn": codes}
