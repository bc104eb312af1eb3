"""`threading`: a thread belongs to the guard that it was started in.

What the program's own code starts is also looked at for what holds in the thread that starts it
alone (`started`); the threads of libraries are their own business.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.checks import TENSORFLOW, TORCH
from pytest_gradguard.runtime.kernel.faults import (
    attempt,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Integration, later

_look_at = later(f"{__name__}.started:look_at")


def patches(module: ModuleType) -> Sequence[Patch]:
    """Watch threads as they are started, and as they are joined."""
    return [Patch(module.Thread, "start", _starting), observe(module.Thread, "join", after=_joined)]


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        attempt(collector.starts, self)
        run = None
        loaded = TORCH in sys.modules or TENSORFLOW in sys.modules
        if loaded and attempt(callsite.is_users, sys._getframe(1)):
            run = attempt(_look_at, self)
        try:
            return original(self)
        except BaseException as error:
            without_this_frame(error)
            if run is not None:
                attempt(run.leave)
            raise

    return start


def _joined(result: None, thread: Any, timeout: float | None = None) -> None:
    if "_gradguard_call" in vars(thread) and not thread.is_alive():
        call = vars(thread).pop("_gradguard_call", None)
        if call is not None:
            collector.announce(call.collector, call.evidence.values())


INTEGRATION = Integration(
    name="threads",
    patches={"threading": patches},
    inline={"threading": later(f"{__name__}.inline:patches")},
)
