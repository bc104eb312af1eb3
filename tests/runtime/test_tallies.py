"""What is counted of parallel calls, on each way out of the calling thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from children import run_python

from pytest_gradguard.findings import Location
from pytest_gradguard.tallies import Tally, merge_tallies

PROGRAM = """\
import json, multiprocessing, operator, sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from joblib import Parallel, delayed
import pytest_gradguard

def loky(size):
    return Parallel(2)(delayed(len)(b"x" * size) for _ in range(4))

def threads():
    Parallel(2, backend="threading")(delayed(abs)(k) for k in range(6))

def generator():
    return list(Parallel(2, backend="threading", return_as="generator")(
        delayed(abs)(k) for k in range(7)
    ))

def fails():
    Parallel(2, backend="threading")(delayed(operator.truediv)(1, k) for k in (0, 0))

def pool():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(5))
        pool.apply(abs, (1,))

def executors():
    with ThreadPoolExecutor(2) as pool:
        for k in range(3):
            pool.submit(abs, k)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        list(pool.map(abs, range(9), chunksize=3))

def alone():
    Parallel(1)(delayed(abs)(k) for k in range(3))

with pytest_gradguard.guard(mode="record") as report:
    loky(10)
    loky(100_000)
    threads()
    threads()
    generator()
    try:
        fails()
    except ZeroDivisionError:
        pass
    pool()
    executors()
    alone()
assert not {"jinja2", "IPython"} & set(sys.modules)
print(json.dumps([call.to_dict() for call in report.calls]))
"""


def test_calls_are_counted_by_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_python("program.py", folder=tmp_path, forked="torch")
    calls: list[dict[str, Any]] = json.loads(done.stdout)
    counted = [
        (call["location"]["function"], call["backend"], call["calls"], call["tasks"])
        for call in calls
    ]
    assert counted == [
        ("loky", "loky", 2, 8),
        ("threads", "threading", 2, 12),
        ("generator", "threading", 1, 7),
        ("fails", "threading", 1, 2),
        ("pool", "multiprocessing", 1, 5),
        ("pool", "multiprocessing", 1, 1),
        ("executors", "threading", 3, 3),
        ("executors", "ProcessPoolExecutor", 1, 9),
    ]
    assert [call["bytes"] is not None for call in calls] == [True] + [False] * 7
    assert 400_000 < calls[0]["bytes"] < 420_000
    assert [call["seconds"] is not None for call in calls] == [True] * 4 + [False] * 4


def test_what_several_have_counted_adds_up() -> None:
    here, there = Location("a.py", 3), Location("a.py", 2)
    one = Tally(here, "loky", 1, 4, 100, 0.5)
    merged = merge_tallies(
        [one, Tally(there, "loky", 1, 1), Tally(here, "threading", 1, 1), one, one]
    )
    assert merged == [
        Tally(there, "loky", 1, 1),
        Tally(here, "loky", 3, 12, 300, 1.5),
        Tally(here, "threading", 1, 1),
    ]
    assert one.calls == 1
