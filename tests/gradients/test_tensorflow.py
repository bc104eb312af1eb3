"""TensorFlow: what the tapes return decides, and each `None` gets its reason.

The programs run in one child, because TensorFlow's threads and a fork of the test process by
another test do not go together.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

PROGRAMS = Path(__file__).parent / "tensorflow_programs.py"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(PROGRAMS)], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def _names() -> list[str]:
    text = PROGRAMS.read_text()
    return [
        line.removeprefix("def ").partition("(")[0]
        for line, before in zip(text.splitlines()[1:], text.splitlines(), strict=False)
        if line.startswith("def ") and before.startswith("@expects")
    ]


@pytest.mark.parametrize("name", _names())
def test_the_reason_is_right(name: str, outcomes: dict[str, Any]) -> None:
    expected, found = outcomes[name]
    assert found == expected


def test_every_name_is_put_back(outcomes: dict[str, Any]) -> None:
    assert outcomes["put back"] == [True, True]
