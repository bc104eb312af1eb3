"""Runs the programs in `gpu_programs/`, each in a child process without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("gpu_programs")
LIMIT = 240


def said_by(program: Path, *arguments: str, **variables: str) -> Any:
    """What a program prints last, as JSON; it and its workers end with the limit.

    A GPU that is there is hidden from it. It gets `variables` in its environment.
    """
    child = subprocess.Popen(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=LIMIT)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, err
    assert "gradguard itself failed" not in err
    return json.loads(out.splitlines()[-1])


def codes(findings: list[dict[str, Any]]) -> set[str]:
    return {finding["code"] for finding in findings}
