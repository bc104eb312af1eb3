"""One run of a compared program; `running` starts it."""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_gradguard.cli.program import execute, find_module, find_script
from pytest_gradguard.comparing import blocking
from pytest_gradguard.comparing.recording import SEED, Recording, recording
from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime import Report, install
from pytest_gradguard.runtime.kernel import generators, inline
from pytest_gradguard.runtime.kernel.faults import attempt

NOTES, OUTCOME = "notes", "outcome"
"""The files that a run leaves in its folder."""


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        findings: the guard's findings.
        handed: how many tasks ran inline.
        calls: how many calls to workers the program has begun.
        refused: tasks that could not run inline.
        unordered: where results come in any order.
        kept: state that tasks have left only in their workers' copies.
        blocked: where a task waited for others, so that the run was given up; otherwise empty.
        in_process: that was the function of a process.
    """

    findings: list[Finding]
    handed: int
    calls: int
    refused: list[str]
    unordered: list[str]
    kept: list[str]
    blocked: str = ""
    in_process: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run a program: ``KIND FOLDER LEFT PATIENCE (-m MODULE | SCRIPT) ARG…``."""
    kind, folder, left, patience, *rest = arguments
    as_module = rest[0] == "-m"
    name, *words = rest[as_module:]
    program = (find_module if as_module else find_script)(name)
    report = install("record")
    inlined = kind == "inline"
    process, runs = os.getpid(), [Recording()]

    def conclude(blocked: str = "") -> None:
        if os.getpid() == process:
            attempt(_conclude, report, folder, blocked, runs[-1].calls)

    def give_up(why: str) -> None:
        conclude(why)
        sys.stdout.flush()
        os._exit(1)

    if inlined:
        blocking.watch(float(patience), give_up)
    atexit.register(conclude)
    seed_alike()
    with recording(Path(folder, NOTES), inlined=inlined, left=left.split(",")) as recorded:
        runs.append(recorded)
        inline.state.give_up = give_up
        try:
            return execute(program, words)
        finally:
            sys.stdout.flush()


def _conclude(report: Report, folder: str, blocked: str, calls: int) -> None:
    known = inline.state
    if blocked and known.started:
        blocked = f"the process started at {known.started} {blocked}"
    elif blocked:
        blocked = f"a task {blocked}"
    outcome = Outcome(
        report.findings,
        known.handed,
        calls,
        list(known.refused),
        list(known.unordered),
        list(known.kept),
        blocked,
        bool(known.started),
    )
    Path(folder, OUTCOME).write_bytes(pickle.dumps(outcome))


def seed_alike() -> None:
    """Seed the generators whose initial state is arbitrary, as their libraries are imported."""
    random.seed(SEED)
    for module in ("numpy", "torch", "tensorflow"):
        seed = functools.partial(generators.seed_library, module, SEED)
        inline.once_imported(module, seed, [])
