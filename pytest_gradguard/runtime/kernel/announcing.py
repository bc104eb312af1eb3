"""The modes: what happens with findings at the end of the call that they came of."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from pytest_gradguard import interactive
from pytest_gradguard.messages import GradGuardError, GradGuardWarning, warning_for
from pytest_gradguard.runtime.kernel.collector import Announce

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding

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
    """Warns of each finding once, at the user's line; again only where it got graver.

    A notebook's cell that runs again is told again: silence would say that it was repaired.
    """

    def __init__(self) -> None:
        self._told: dict[object, int] = {}

    def __call__(self, findings: list[Finding]) -> None:
        for finding in findings:
            key = (finding.key, interactive.execution())
            if self._told.get(key, -1) < finding.severity:
                self._told[key] = finding.severity
                warn(finding)


_elsewhere: dict[object, dict[Any, Any]] = {}
"""The registries of warnings at places that are in no module's file."""


def warn(finding: Finding) -> None:
    """Warn of `finding` at its own line, so that the user's warning filters reach it."""
    path = finding.location.path
    _, registry = _module_of(path)
    if registry is None:
        registry = _elsewhere.setdefault((path, interactive.execution()), {})
    emit(warning_for(finding), path, finding.location.line, registry)


def emit(
    warning: GradGuardWarning, path: str, line: int, registry: dict[Any, Any] | None = None
) -> None:
    """Warn at that place. Without a `registry`, warnings of earlier do not count."""
    module, _ = _module_of(path)
    # An explicit None for the module would make the warning vanish without a trace.
    named: dict[str, Any] = {} if module is None else {"module": module}
    category: Any = None  # that of the warning
    warnings.warn_explicit(warning, category, path, line, registry=registry, **named)


def _module_of(path: str) -> tuple[str | None, dict[Any, Any] | None]:
    """The module at `path`, as warning filters name it, and its registry of warnings.

    What is typed in belongs to ``__main__``, which has no file then. Of other code that is in no
    file the `warnings` module makes a name itself.
    """
    for name, module in list(sys.modules.items()):
        names = _names_in(module)
        if names.get("__file__") == path:
            return name, names.setdefault("__warningregistry__", {})
    typed_in = "__file__" not in _names_in(sys.modules.get("__main__"))
    return "__main__" if typed_in else None, None


def _names_in(module: Any) -> dict[str, Any]:
    """The names in `module`; one that loads itself on first use is left asleep."""
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names if isinstance(names, dict) else {}
