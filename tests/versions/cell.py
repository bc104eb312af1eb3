"""Runs the tests of one cell of the matrix in this environment, and records what came of them.

``python tests/versions/cell.py NAME``; nox makes the environment (`noxfile.py`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import matrix

RECORDED = matrix.ROOT / "tests/recorded/versions.json"
SHOWN = (*matrix.TESTS, "distributed", "numpy", "tensorflow", "libcst", "pathspec", "pluggy")


class Outcomes:
    """A plugin that counts how tests end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped or report.when == "call":
            self.counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def recorded() -> dict[str, Any]:
    """By the cells that were run: their versions, and what came of their tests."""
    known: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return known


def write(known: dict[str, Any]) -> None:
    """Record cells in the order of the matrix; those that are no longer in it are gone."""
    names = [cell.name for cell in matrix.cells()]
    ordered = {name: known[name] for name in names if name in known}
    RECORDED.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """What is installed here of what the matrix is about, and of what it stands on."""
    found = {}
    for name in SHOWN:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            pass
    return dict(sorted(found.items()))


def ran(tests: list[str], cell: matrix.Cell, processes: str) -> Outcomes:
    """Run tests of a cell here; ends the program where none was run."""
    outcomes = Outcomes()
    os.chdir(matrix.ROOT)
    os.environ["GRADGUARD_GUARD_CASES"] = " ".join(cell.cases)
    pytest.main(["-q", "-p", "no:cacheprovider", "-n", processes, *tests], [outcomes])
    if not outcomes.counts and not outcomes.failed:
        raise SystemExit(f"none of these was run: {', '.join(tests)}")
    return outcomes


def run(cell: matrix.Cell, processes: str) -> dict[str, Any]:
    """Run the tests of a cell; returns what is recorded of it."""
    outcomes = ran(cell.arguments, cell, processes)
    return {
        "python": platform.python_version(),
        "versions": versions(),
        "tests": list(cell.tests),
        "passed": outcomes.counts["passed"],
        "skipped": outcomes.counts["skipped"],
        "failed": sorted(outcomes.failed),
    }


def run_failed(cell: matrix.Cell, before: dict[str, Any], processes: str) -> dict[str, Any]:
    """Run only those tests again that failed; returns what is recorded of the cell then."""
    if (platform.python_version(), versions()) != (before["python"], before["versions"]):
        raise SystemExit("other versions than when it was recorded: run the whole cell")
    if not before["failed"]:
        raise SystemExit("no test failed when it was recorded")
    outcomes = ran(before["failed"], cell, processes)
    added = {name: before[name] + outcomes.counts[name] for name in ("passed", "skipped")}
    return {**before, **added, "failed": sorted(outcomes.failed)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="the name of a cell, as matrix.py prints it")
    parser.add_argument("--processes", default="2", help="how many run tests (default: 2)")
    parser.add_argument("--only-check", action="store_true", help="record nothing")
    parser.add_argument(
        "--last-failed", action="store_true", help="run again what failed when it was recorded"
    )
    given = parser.parse_args()
    known = [*matrix.cells(), *matrix.corners()]
    cell = next((cell for cell in known if cell.name == given.name), None)
    if cell is None:
        parser.error(f"the matrix has no cell {given.name!r}")
    if given.last_failed:
        if cell.name not in recorded():
            parser.error(f"nothing is recorded of the cell {cell.name!r}")
        result = run_failed(cell, recorded()[cell.name], given.processes)
    else:
        result = run(cell, given.processes)
    if not given.only_check:
        write({**(recorded() if RECORDED.exists() else {}), cell.name: result})
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
