"""Which tests stay together under pytest-xdist, and in which order: what takes longest comes first.

Then all processes end at about the same time. `make truth` records how long each group takes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded" / "seconds.json"


def group_of(nodeid: str) -> str:
    """The tests of a file run in one process, unless their ids name a group of their own."""
    path, _, test = nodeid.partition("::")
    _, sign, group = test.removesuffix("]").rpartition("@")
    return f"{path}@{group}" if sign and group.startswith("case_") else path


def seconds() -> dict[str, int]:
    """How long each group takes, as far as it is recorded."""
    if not RECORDED.exists():
        return {}
    known: dict[str, int] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return known


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time that their group takes; those that nobody knows come first."""
    known = seconds()

    def order(item: pytest.Item) -> tuple[float, str]:
        group = group_of(item.nodeid)
        return -known.get(group, float("inf")), group

    items.sort(key=order)


class Stopwatch:
    """A plugin that records how long each group takes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[group_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        new = {group: round(time) for group, time in self.seconds.items()}
        files = {group.partition("@")[0] for group in new}  # groups of a file may have changed
        old = {g: time for g, time in seconds().items() if g.partition("@")[0] not in files}
        known = dict(sorted({**old, **new}.items()))
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(f"{json.dumps(known, indent=1)}\n", encoding="utf-8")


class SkippedTests:
    """A plugin that writes the ids of skipped tests to a file, which pytest reads as @FILE."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.ids[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.ids[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self.path.write_text("".join(f"{one}\n" for one in self.ids), encoding="utf-8")
