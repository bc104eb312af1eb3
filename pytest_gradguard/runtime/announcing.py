"""The modes: what happens with findings at the end of the call that they came of."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.collector import Announce
from pytest_gradguard.messages import GradGuardError, warning_for

MODES = ("warn", "error", "record")


def announcer(mode: str) -> Announce | None:
    """What the mode does with findings; None where it does nothing.

    Raises:
        ValueError: there is no such mode.
    """
    if mode == "record":
        return None
    if mode == "error":
        return _raise
    if mode == "warn":
        return Warner()
    raise ValueError(f"unknown mode {mode!r} (allowed: {', '.join(MODES)})")


def _raise(findings: list[Finding]) -> None:
    if findings:
        raise GradGuardError(findings)


class Warner:
    """Warns of each finding once, at the user's line; again only where it got graver."""

    def __init__(self) -> None:
        self._told: dict[object, int] = {}

    def __call__(self, findings: list[Finding]) -> None:
        for finding in findings:
            if self._told.get(finding.key, -1) < finding.severity:
                self._told[finding.key] = finding.severity
                warn(finding)


def warn(finding: Finding) -> None:
    """Warn of `finding` at its own line, so that the user's warning filters reach it."""
    where = finding.location
    module, registry = _module_of(where.path)
    warnings.warn_explicit(
        warning_for(finding),
        None,  # type: ignore[arg-type]
        filename=where.path,
        lineno=where.line,
        module=module,
        registry=registry,
    )


def _module_of(path: str) -> tuple[str | None, dict[Any, Any] | None]:
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path:
            return name, vars(module).setdefault("__warningregistry__", {})
    return None, None
