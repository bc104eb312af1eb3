"""The modes: how findings are announced at the end of their call."""

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
    """How the mode announces findings; None if it does not.

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
    """Warns of each finding once, at the user's line; again only if it became more severe.

    A notebook's cell that runs again warns again: silence would suggest that it was fixed.
    """

    def __init__(self) -> None:
        self._announced: dict[object, int] = {}

    def __call__(self, findings: list[Finding]) -> None:
        for finding in findings:
            key = (finding.key, interactive.execution())
            if self._announced.get(key, -1) < finding.severity:
                self._announced[key] = finding.severity
                warn(finding)


_other_registries: dict[object, dict[Any, Any]] = {}
"""The registries of warnings at places outside of modules' files."""


def warn(finding: Finding) -> None:
    """Warn of `finding` at its own line, so that the user's warning filters apply to it."""
    path = finding.location.path
    _, registry = _module_of(path)
    if registry is None:
        registry = _other_registries.setdefault((path, interactive.execution()), {})
    emit(warning_for(finding), path, finding.location.line, registry)


def emit(
    warning: GradGuardWarning, path: str, line: int, registry: dict[Any, Any] | None = None
) -> None:
    """Warn at that place. Without a `registry`, earlier warnings are not considered."""
    module, _ = _module_of(path)
    # With an explicit None for the module, `warnings` would drop the warning.
    named: dict[str, Any] = {} if module is None else {"module": module}
    category: Any = None  # that of the warning
    warnings.warn_explicit(warning, category, path, line, registry=registry, **named)


def _module_of(path: str) -> tuple[str | None, dict[Any, Any] | None]:
    """The module at `path`, as warning filters name it, and its registry of warnings.

    Interactive input belongs to ``__main__``, which then has no file. For other code without a file
    the `warnings` module makes a name itself.
    """
    for name, module in list(sys.modules.items()):
        names = _names_in(module)
        if names.get("__file__") == path:
            return name, names.setdefault("__warningregistry__", {})
    typed_in = "__file__" not in _names_in(sys.modules.get("__main__"))
    return "__main__" if typed_in else None, None


def _names_in(module: Any) -> dict[str, Any]:
    """The names in `module`, without triggering a lazy module."""
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names if isinstance(names, dict) else {}
