"""Runs the programs in `gpu_programs/`, each in a child process without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from children import run_python

PROGRAMS = Path(__file__).with_name("gpu_programs")
LIMIT = 240


def said_by(program: Path, *arguments: str, **variables: str) -> Any:
    """What a program prints last, as JSON; it and its workers end with the limit.

    A GPU that is there is hidden from it. It gets `variables` in its environment.
    """
    variables = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    forked = "tensorflow" if "tensorflow" in program.name else "torch"
    done = run_python(program, *arguments, limit=LIMIT, environment=variables, forked=forked)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def codes(findings: list[dict[str, Any]]) -> set[str]:
    return {finding["code"] for finding in findings}
