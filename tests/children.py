"""Programs that tests run in a process of their own, because they could hang or change this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Done = subprocess.CompletedProcess[str]


def run_python(
    *arguments: str | Path,
    limit: float = 120,
    folder: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run Python, and end it at the limit; what it started ends with it.

    It knows nothing of the run of tests that it is a part of.

    Args:
        arguments: those of the command line.
        limit: how long it may take, in s; only a hang takes so long.
        folder: where it runs.
        environment: further environment variables.

    Raises:
        AssertionError: it hung.
    """
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    child = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**inherited, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    hung = False
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        hung = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    if hung:
        out, err = child.communicate()
        raise AssertionError(f"hung: {arguments}\n{out}\n{err}")
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)
