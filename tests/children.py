"""Programs that tests run in a process of their own, because they could hang or change this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import warm

from pytest_gradguard.platforms import HERE

Done = subprocess.CompletedProcess[str]

PLUGINS = {"PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio"}
"""The environment of programs: a run of pytest is without plugins that take a third of its time."""


def run_python(
    *arguments: str | Path,
    limit: float = 120,
    folder: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    one_stream: bool = False,
    forked: str = "",
    faults: bool = False,
) -> Done:
    """Run Python, and end it at the limit; what it started ends with it.

    It knows nothing of the run of tests that it is a part of.

    Args:
        arguments: those of the command line.
        limit: how long it may take, in s; only a hang takes so long.
        folder: where it runs.
        environment: further environment variables.
        one_stream: what it writes to standard error is in `stdout`, in order.
        forked: torch, or tensorflow, that it or its workers import: it may be forked from a process
            that has done so, and they are, too (`warm`).
        faults: the guard itself may fail in it.

    Raises:
        AssertionError: it hung, or the guard itself failed.
    """
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    variables = {**inherited, **PLUGINS, **(environment or {})}
    words = list(map(str, arguments))
    hung = False
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        told = out if one_stream else err
        child: warm.Child | subprocess.Popen[bytes]
        if forked and warm.can_run(variables):
            streams = (nothing.fileno(), out.fileno(), told.fileno())
            child = warm.Child(words, str(folder or os.getcwd()), variables, streams, forked)
        else:
            child = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=variables,
                stdin=nothing,
                stdout=out,
                stderr=told,
                start_new_session=True,
            )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            HERE.end_group(child.pid)
            if isinstance(child, subprocess.Popen):
                child.kill()
            status = child.wait(limit)
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(words, status, out.read(), err.read())
    assert not hung, f"hung: {words}\n{done.stdout}\n{done.stderr}"
    failed = "gradguard itself failed" in done.stdout + done.stderr
    assert faults or not failed, f"{words}\n{done.stdout}\n{done.stderr}"
    return done
