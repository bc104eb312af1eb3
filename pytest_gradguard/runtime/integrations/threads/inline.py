"""A thread that starts while modes of torch's or tapes are in force: its work runs in `start`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.threads.started import lacks_something
from pytest_gradguard.runtime.kernel import callsite, inline
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patch


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `threading`."""
    return [observe(module.Thread, "start", before=_starts)]


def _starts(thread: Any) -> None:
    if callsite.is_users(caller()) and lacks_something(thread):
        # The thread itself only raises what its work has raised.
        thread.run = inline.unseeded(thread.run).result
