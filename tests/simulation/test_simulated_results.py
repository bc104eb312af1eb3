"""What programs compute on a simulated GPU is what they compute on the CPU; nothing is found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytest.importorskip("torch")

HERE = Path(__file__).parent
NAMES = sorted(
    {
        name
        for file in ("training.py", "autograd.py", "tensors.py")
        for name in re.findall(
            r"^@prog\ndef (\w+)|^    \"(\w+)\": .*torch\.optim", (HERE / file).read_text(), re.M
        )
    }
)
PROGRAMS = [function or f"optimizer_{optimizer}" for function, optimizer in NAMES]


@pytest.fixture(scope="module")
def results() -> Any:
    done = run_python(HERE / "compare.py", limit=280)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["program"]: line for line in lines}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_results_are_those_of_the_cpu(program: str, results: Any) -> None:
    assert results[program]["same"], results[program]
    assert results[program]["found"] == []


def test_every_program_is_named(results: Any) -> None:
    assert sorted(results) == sorted(PROGRAMS)
