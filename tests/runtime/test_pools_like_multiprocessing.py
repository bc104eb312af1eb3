"""Libraries with the names of `multiprocessing`: their pools and processes, forked and spawned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import run_python

PROGRAM = """
import importlib
import json
import sys
import torch
from pytest_gradguard import guard

def double(x):
    return x * 2

def total(x):
    return float(x.sum())

def learn(model):
    model.weight.sum().backward()

def length(x):
    return len(x)

def pair(x, y):
    return x, y

def fails(x):
    raise ValueError(x)

def use_all_methods(pool):
    yield pool.map(length, ["a", "bc"]), pool.map(length, ("a" * k for k in range(3)))
    yield list(pool.imap(length, ["ab", ""])), list(pool.imap(length, ["ab", ""], chunksize=2))
    yield sorted(pool.imap_unordered(length, (x for x in ("a", "bcd"))))
    yield pool.starmap(pair, [(1, 2), [3, 4]]), pool.apply(pair, (5,), {"y": 6})
    yield pool.map_async(length, ["abc"]).get(20), pool.apply_async(length, ("x",)).get(20)
    try:
        pool.map(fails, [7])
    except ValueError as error:
        yield str(error)

def main(library, method):
    module = importlib.import_module(library)
    pools = importlib.import_module(library + ".pool")
    context = module.get_context(method)
    x = torch.ones(3, requires_grad=True)
    with guard("record") as report:
        with context.Pool(1) as pool:
            used = [repr(one) for one in use_all_methods(pool)]
            out = pool.map(double, [x * 1, x * 1])
            (out[0] + out[1]).sum().backward()
            assert pool.starmap(total, [(x.detach(),)] * 2) == [3.0, 3.0]
        model = torch.nn.Linear(2, 2).share_memory()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        process = context.Process(target=learn, args=(model,))
        process.start()
        process.join()
        optimizer.step()
    assert not hasattr(pools.Pool.apply_async, "__wrapped__")
    with context.Pool(1) as pool:
        assert used == [repr(one) for one in use_all_methods(pool)], used
    found = {(one.code, one.details["backend"]) for one in report.findings}
    return sorted(found - {("GG107", library)})

if __name__ == "__main__":
    print(json.dumps({method: main(sys.argv[1], method) for method in ("fork", "spawn")}))
"""


@pytest.mark.parametrize("library", ["multiprocess", "billiard"])
def test_what_crosses_is_seen_as_with_multiprocessing(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python(program, library, forked="torch")
    assert done.returncode == 0, done.stderr
    codes = [[code, library] for code in ("GG101", "GG102", "GG103", "GG106")]
    assert json.loads(done.stdout) == {"fork": codes, "spawn": codes}
