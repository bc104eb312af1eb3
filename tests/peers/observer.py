"""A pytest plugin that writes one line a test: its outcome, and what the process had after it.

`--observe FILE` appends JSON lines. A test that kills pytest leaves its `begin` alone there, and a
run that is started again with the same file goes on after it. A test that takes longer than
`--observe-limit` seconds ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO

import pytest

SHARED_MEMORY = Path("/dev/shm")

_SETTLES_IN = 0.5
"""Seconds in which what a test has stopped must be gone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("observer")
    group.addoption("--observe", metavar="FILE", default=None)
    group.addoption("--observe-only", metavar="FILE", help="the tests that its lines name")
    group.addoption("--observe-limit", metavar="SECONDS", type=float, default=300.0)


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--observe")
    if file:
        config.pluginmanager.register(Observer(config, Path(file)))


class Observer:
    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._limit: float = config.getoption("--observe-limit")
        only = config.getoption("--observe-only")
        self._only = set(Path(only).read_text(encoding="utf-8").splitlines()) if only else None
        self._seen = {line["test"] for line in _lines(file)}
        self._file: TextIO = file.open("a", encoding="utf-8")
        self._process = os.getpid()
        self._stderr = os.dup(2)
        self._outcomes: dict[str, tuple[str, str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        wanted = [
            item
            for item in items
            if item.nodeid not in self._seen and (self._only is None or item.nodeid in self._only)
        ]
        left_out = [item for item in items if item not in wanted]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = wanted

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = resources()
        self._write({"test": item.nodeid, "event": "begin"})
        faulthandler.dump_traceback_later(self._limit, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            if os.getpid() == self._process:  # and not a child that a test has let escape
                faulthandler.cancel_dump_traceback_later()
                outcome, why = self._outcomes.pop(item.nodeid, ("nothing", ""))
                left = _left(before)
                line = {"test": item.nodeid, "event": "end", "outcome": outcome, "why": why}
                self._write(line | {"left": left})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"
        if report.failed and report.when != "call":
            outcome = "error"
        if report.when == "call" or outcome != "passed":
            why = "" if call.excinfo is None else call.excinfo.typename
            self._outcomes[item.nodeid] = outcome, why if report.failed else ""
        return report

    def _write(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self._file, flush=True)


def resources() -> dict[str, set[str]]:
    """What this process has: processes below it, threads, descriptors, temporary files."""
    return {
        "processes": _processes(),
        "threads": {f"{each.name} {each.ident}" for each in threading.enumerate()},
        "descriptors": _descriptors(),
        "files": _files(),
    }


def _left(before: dict[str, set[str]]) -> dict[str, int]:
    """How much more of each there is than before; what ends by itself is given some time."""
    until = time.monotonic() + _SETTLES_IN
    while True:
        now = resources()
        more = {kind: len(now[kind]) - len(before[kind]) for kind in now}
        if max(more.values()) <= 0 or time.monotonic() > until:
            return {kind: number for kind, number in more.items() if number > 0}
        gc.collect()
        time.sleep(0.05)


def _processes() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= set((task / "children").read_text().split())
    return found


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _files() -> set[str]:
    """Those of this run's temporary folder, and in shared memory those with this process's name."""
    found = set()
    temporary = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        found = {name for name in os.listdir(temporary) if not name.startswith("pytest-of-")}
    with contextlib.suppress(OSError):
        mine = f"_{os.getpid()}_", f"-{os.getpid()}-"
        found |= {name for name in os.listdir(SHARED_MEMORY) if any(each in name for each in mine)}
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if not sys.platform.startswith("linux"):  # pragma: no cover
    raise ImportError("what a test leaves is read from /proc, which only Linux has")
