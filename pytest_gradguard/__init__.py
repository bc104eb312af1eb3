"""gradguard: finds gradients that joblib, processes and threads lose silently.

The public names are loaded on first use, so that ``import pytest_gradguard`` costs next to
nothing and imports no framework.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing

__version__ = "0.1.0"

_HOMES = {
    "Finding": "pytest_gradguard.findings",
    "Framework": "pytest_gradguard.runtime.kernel.framework",
    "GradGuardConfirmed": "pytest_gradguard.messages",
    "GradGuardError": "pytest_gradguard.messages",
    "GradGuardSuspicion": "pytest_gradguard.messages",
    "GradGuardWarning": "pytest_gradguard.messages",
    "allow": "pytest_gradguard.runtime",
    "check_gradients": "pytest_gradguard.checking",
    "guard": "pytest_gradguard.runtime",
    "install": "pytest_gradguard.runtime",
    "load_ipython_extension": "pytest_gradguard.notebook",
    "register_framework": "pytest_gradguard.runtime.kernel.frameworks",
    "register_integration": "pytest_gradguard.runtime.integrations",
    "uninstall": "pytest_gradguard.runtime",
    "unload_ipython_extension": "pytest_gradguard.notebook",
    "watch_gradients": "pytest_gradguard.gradients",
    "why_no_grad": "pytest_gradguard.gradients",
}

__all__ = [
    "Finding",
    "Framework",
    "GradGuardConfirmed",
    "GradGuardError",
    "GradGuardSuspicion",
    "GradGuardWarning",
    "allow",
    "check_gradients",
    "guard",
    "install",
    "register_framework",
    "register_integration",
    "uninstall",
    "watch_gradients",
    "why_no_grad",
]

if TYPE_CHECKING:
    from pytest_gradguard.checking import check_gradients
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.gradients import watch_gradients, why_no_grad
    from pytest_gradguard.messages import (
        GradGuardConfirmed,
        GradGuardError,
        GradGuardSuspicion,
        GradGuardWarning,
    )
    from pytest_gradguard.runtime import allow, guard, install, uninstall
    from pytest_gradguard.runtime.integrations import register_integration
    from pytest_gradguard.runtime.kernel.framework import Framework
    from pytest_gradguard.runtime.kernel.frameworks import register_framework


def __getattr__(name: str) -> object:
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
