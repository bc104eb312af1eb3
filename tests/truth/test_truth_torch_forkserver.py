"""The fork server, from which processes start by default (Linux, Python 3.14 and newer)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import run_python

pytestmark = [
    pytest.mark.skipif(
        sys.version_info < (3, 14) or sys.platform != "linux",
        reason="the fork server by default: Python 3.14 on Linux",
    ),
    pytest.mark.skipif(not (find_spec("torch") and find_spec("numpy")), reason="no torch or NumPy"),
]

PROGRAM = """\
import multiprocessing
import sys

import numpy as np
import torch

torch.set_num_threads(2)
WHERE


def work(_):
    return torch.ones(300, 300).sum().item()


def draw(_):
    return np.random.random()


if __name__ == "__main__":
    HERE
    pool = multiprocessing.Pool(2)
    if sys.argv[1] == "draw":
        print(len({pool.apply(draw, (0,)), multiprocessing.Pool(1).apply(draw, (0,))}))
    else:
        pool.map(abs, range(9))  # the workers are there
        try:
            pool.map_async(work, range(2)).get(20)
            print("done")
        except multiprocessing.TimeoutError:
            print("waits")
    pool.terminate()
"""
COMPUTES = "torch.ones(300, 300)"


def said(tmp_path: Path, what: str, *, where: str = "", here: str = "pass") -> str:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("WHERE", where).replace("HERE", here))
    return run_python(program, what).stdout.strip()


def test_what_main_computes_as_it_is_imported_hangs_its_workers(tmp_path):
    """Workers wait forever for threads that the main module started while it was imported."""
    assert said(tmp_path, "work", where=COMPUTES) == "waits"


def test_what_the_program_computes_itself_does_not(tmp_path):
    """They do not where the program computes below `if __name__ == "__main__":`."""
    assert said(tmp_path, "work", here=COMPUTES) == "done"


def test_workers_draw_alike_from_a_generator_that_was_imported(tmp_path):
    """They draw the same numbers from NumPy's generator if the main module has used it there."""
    assert said(tmp_path, "draw", where="np.random.random()") == "1"
