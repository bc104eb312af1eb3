"""What launchers of ranks are given is named as the program wrote it, whatever they prepend."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from children import run_python

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("launched.py")


@functools.cache
def found() -> dict[str, list[list[str]]]:
    done = run_python(PROGRAM, limit=240, forked="torch")
    assert done.returncode == 0, done.stderr
    told: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    ("launcher", "path", "subject"),
    [
        ("spawn", "args[1]", "`mine.weight`, parameter `net` of `fit`"),
        ("spawn_method", "args[1]", "`mine.weight`, parameter `net` of `Trainer.fit`"),
        ("spawn_partial", "args[0]", "parameter `net.weight` of `fit`"),
        ("start_processes", "args[1]", "`mine.weight`, parameter `net` of `fit`"),
        ("elastic", "args[1]", "`mine.weight`, parameter `net` of `fit_alone`"),
        ("accelerate", "args[1]", "`mine.weight`, parameter `net` of `fit_alone`"),
        ("fabric", "args[1]", "`mine.weight`, parameter `net` of `fit`"),
    ],
)
def test_an_argument_is_named_as_the_program_wrote_it(
    launcher: str, path: str, subject: str
) -> None:
    if launcher not in found():
        pytest.skip(f"{launcher} is not installed")
    assert found()[launcher] == [[f"{path}.weight", subject, launcher]]
