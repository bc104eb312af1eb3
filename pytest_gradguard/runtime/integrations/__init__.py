"""The ways in which work leaves the calling thread: one module, or package, a library.

Each holds an `INTEGRATION` of its own name; this folder is the list of ours. They stand
on the kernel's `dispatch`: a call through one of them is a `Call`; its tasks travel under watch.
"""

from __future__ import annotations

import os
from importlib import import_module

from pytest_gradguard.runtime.kernel import registry
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.registry import Integration

# Not by pkgutil, which looks into each package of the folder, at every start of the guard.
_names = {name.partition(".")[0] for name in os.listdir(__path__[0]) if not name.startswith("__")}
_loaded = False
_loading = Lock()


def load() -> None:
    """Register the integrations of this folder, once."""
    global _loaded
    with _loading:
        if not _loaded:
            _loaded = True
            for name in sorted(_names):
                registry.register(import_module(f"{__name__}.{name}").INTEGRATION)


def register_integration(integration: Integration) -> None:
    """Let the guard watch the workers of another package whenever it is on.

    It replaces an integration that was registered under the same name.

    Args:
        integration: a description of these workers (see `docs/integrations.md`).

    Raises:
        TypeError: `integration` is not an `Integration`.
        ValueError: its name is that of one of gradguard's own.
    """
    if not isinstance(integration, Integration):
        raise TypeError(f"register_integration takes an Integration, not {integration!r}")
    if integration.name in _names:
        raise ValueError(
            f"gradguard already has an integration named {integration.name!r}: choose another name"
        )
    registry.register(integration)
