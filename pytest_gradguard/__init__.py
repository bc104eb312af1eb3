"""gradguard: finds gradients that joblib, processes and threads lose without an error.

The public names are loaded on first use, so that ``import pytest_gradguard`` costs next to
nothing and imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Finding": "pytest_gradguard.findings",
    "GradGuardError": "pytest_gradguard.messages",
    "GradGuardWarning": "pytest_gradguard.messages",
    "allow": "pytest_gradguard.runtime",
    "guard": "pytest_gradguard.runtime",
    "install": "pytest_gradguard.runtime",
    "uninstall": "pytest_gradguard.runtime",
}

__all__ = [
    "Finding",
    "GradGuardError",
    "GradGuardWarning",
    "allow",
    "guard",
    "install",
    "uninstall",
]

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.runtime import allow, guard, install, uninstall
    from pytest_gradguard.messages import GradGuardError, GradGuardWarning


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(home)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
