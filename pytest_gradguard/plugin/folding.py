"""Failures of many tests by one cause: shown once, with the names of the other tests."""

from __future__ import annotations

import re
from typing import Any

import pytest

_OURS = re.compile(r"(?:error|warning)\[GG\d{3}\] ")
_MOST = 3
"""So many equal failures are shown one by one, and so many of their tests are named otherwise."""


def fold_failures(config: pytest.Config) -> None:
    """Show one of many failures whose text is the same; the short summary lists them all.

    What pytest writes by test, such as its JUnit file, is written by then and stays in full.
    """
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.getoption("tbstyle", "auto") in ("no", "line"):
        return
    for kind in ("failed", "error"):
        equal: dict[str, list[Any]] = {}
        for report in terminal.stats.get(kind, ()):
            text = str(report.longrepr)
            if _OURS.match(text) and not report.sections:  # it has no output of its own
                equal.setdefault(text, []).append(report)
        for first, *others in equal.values():
            if len(others) >= _MOST and hasattr(first.longrepr, "sections"):
                names = sorted(report.nodeid for report in others)
                more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
                title = f"the same in {len(names)} other tests"
                first.longrepr.sections.append((title, ", ".join(names[:_MOST]) + more, "-"))
                for report in others:
                    report._pdbshown = True  # as pytest marks a failure that was shown before
