"""Values that hold one part in many places: walked as a tree they would be millions."""

from __future__ import annotations

import subprocess

import pytest

LEVELS = 24

HEAD = """\
import torch
from joblib import Parallel, delayed


class Pair:
    def __init__(self, left, right):
        self.left = left
        self.right = right


def made(x):
"""

PAIRS = {
    "list": "[x, x]",
    "tuple": "(x, x)",
    "dict": "{'a': x, 'b': x}",
    "object": "Pair(x, x)",
}

PROGRAMS = {
    "returned": """
w = torch.ones(3, requires_grad=True)
print(Parallel(n_jobs=2)(delayed(made)(w * k) for k in range(3)))
""",
    "sent": """
def work(x):
    return x


x = made(torch.ones(3, requires_grad=True))
print(Parallel(n_jobs=2)(delayed(work)(x) for _ in range(3)))
""",
    "compared": """
def work(x):
    return x


a, b = made(1), made(1)
for _ in range(3):
    if a == b:
        a = b
print(Parallel(n_jobs=2)(delayed(work)(it) for it in (a, b)))
""",
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_part_in_many_places_is_looked_at_once(project, kind, program):
    body = f"    x = {PAIRS[kind]}\n" * LEVELS + "    return x\n\n\n"
    project.write("nested.py", HEAD + body + PROGRAMS[program].lstrip("\n"))
    process = project.start("nested.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode in (0, 1), err) == (True, b"")
