"""A process that was forked from one that has begun with a GPU fails as with a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import run_python
from forked_gpu import BEGINNINGS, RECORDED

pytest.importorskip("torch", minversion="2.11", reason="recorded with torch 2.11")

PROGRAM = Path(__file__).parents[1] / "forked_gpu.py"


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_as_on_a_real_gpu(beginning: str) -> None:
    done = run_python(PROGRAM, "--simulate", beginning, limit=240, forked="torch")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)[beginning]
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[beginning]
    assert {action: seen[action] for action in recorded} == recorded
