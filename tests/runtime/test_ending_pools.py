"""Pools that end while a worker sends a result: without the guard, this one waits forever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from children import run_python

PROGRAM = """
import sys, threading, time
from multiprocessing import get_context
from pathlib import Path

from joblib.pool import MemmappingPool  # which pickles results under its queue's lock

from pytest_gradguard import guard

ends = Path(sys.argv[1])

class Slow:
    def __reduce__(self):  # pickled while the lock of the queue is held
        (ends.parent / "sends").touch()
        time.sleep(1.5)
        return (str, ())

def late():
    while not ends.exists():
        time.sleep(0.01)
    return Slow()

def main():
    pool = MemmappingPool(1, context=get_context("fork"))
    pool.apply_async(late)
    put = pool._outqueue.put
    def ending(item):  # this thread's sentinel comes before what the worker sends, the other after
        first = threading.current_thread() is threading.main_thread()
        if first:
            put(item)
            ends.touch()
        while not (ends.parent / "sends").exists():
            time.sleep(0.01)
        if not first:
            put(item)
    pool._outqueue.put = ending
    time.sleep(0.3)
    pool.terminate()
    print("has ended")

if __name__ == "__main__":
    if sys.argv[2] == "guarded":
        with guard("record"):
            main()
    else:
        main()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_pool_that_ends_while_a_worker_sends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python(program, tmp_path / "ends", "guarded", limit=60, forked="torch")
    assert done.stdout == "has ended\n"
