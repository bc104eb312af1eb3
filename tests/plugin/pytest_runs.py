"""Runs of pytest in a process of their own, with real joblib workers and real torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import run_python

QUIET = (
    *("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestDeprecationWarning"),
    # torch 2.4 and 2.5, of themselves
    *("-W", "ignore:You are using `torch.load`:FutureWarning"),
)
LIMIT = 240  # seconds; only a hang takes so long


@dataclass(frozen=True)
class Run:
    """A finished run of pytest."""

    folder: Path
    status: int
    text: str

    def report(self, name: str = "report.json") -> dict[str, Any]:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def codes(self, name: str = "report.json") -> dict[str | None, set[str]]:
        """The codes of warning and above, for each test that has any."""
        found: dict[str | None, set[str]] = {}
        for finding in self.report(name)["findings"]:
            if finding["severity"] != "info":
                found.setdefault(finding["test"], set()).add(finding["code"])
        return found


def run_pytest(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    faults: bool = False,
) -> Run:
    """Run pytest in `folder`; its own process, so that nothing of this one is in force."""
    done = run_python(
        *("-m", "pytest", *QUIET, *arguments),
        folder=folder,
        environment={"COLUMNS": "120", **(environment or {})},
        limit=LIMIT,
        one_stream=True,
        forked="torch",
        faults=faults,
    )
    return Run(folder, done.returncode, done.stdout)
