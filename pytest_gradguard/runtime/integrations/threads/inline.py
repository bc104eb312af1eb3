"""A thread that starts while modes of torch's or tapes are in force: its work runs in `start`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.threads.started import lacks_something
from pytest_gradguard.runtime.kernel import callsite, inline
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.patching import Patch


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `threading`."""
    return [Patch(module.Thread, "start", _inline_start)]


def _inline_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        users = attempt(callsite.is_users, sys._getframe(1))
        if not (users and lacks_something(self)):
            return original(self)
        # The thread itself only raises what its work has raised.
        self.run = inline.unseeded(self.run).result
        return original(self)

    return start
