"""Several interpreters in one process (Python 3.14 and newer)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import run_python

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 14), reason="InterpreterPoolExecutor: Python 3.14"),
    pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed"),
]

PROGRAM = """\
import importlib
import random
import sys
from concurrent.futures import InterpreterPoolExecutor


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__


def draw(generator):
    return generator.random()


if __name__ == "__main__":
    with InterpreterPoolExecutor(2) as pool:
        if sys.argv[1] == "import":
            print(pool.submit(outcome, importlib.import_module, "torch").result())
        elif sys.argv[1] == "backward":
            import torch

            def backward():
                torch.ones(2, requires_grad=True).sum().backward()

            print(outcome(backward))
            pool.submit(len, "a task starts an interpreter").result()
            print(outcome(backward))
        elif sys.argv[1] == "send":
            import torch

            for tensor in (torch.ones(2), torch.ones(2, requires_grad=True) * 2):
                print(outcome(lambda: pool.submit(len, tensor).result()))
        else:
            print(len(set(pool.map(draw, [random.Random(1)] * 4))))
"""


def said(tmp_path: Path, what: str) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return run_python(program, what).stdout.split()


def test_an_interpreter_of_a_pool_cannot_import_torch(tmp_path):
    """torch cannot be imported in an interpreter of `InterpreterPoolExecutor`."""
    assert said(tmp_path, "import") == ["ImportError"]


def test_a_tensor_is_refused_on_its_way_to_an_interpreter(tmp_path):
    """A tensor cannot be sent to another interpreter: `NotShareableError`."""
    assert said(tmp_path, "send") == ["NotShareableError"] * 2


def test_a_generator_object_draws_the_same_in_every_task_of_an_interpreter(tmp_path):
    """A generator object that is sent to an interpreter draws the same numbers in every task."""
    assert said(tmp_path, "draw") == ["1"]


def test_no_backward_pass_runs_once_an_interpreter_was_created(tmp_path):
    """Once a process has created another interpreter, `backward()` raises a `RuntimeError`."""
    assert said(tmp_path, "backward") == ["None", "RuntimeError"]
