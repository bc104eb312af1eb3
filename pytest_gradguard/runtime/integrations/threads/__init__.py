"""`threading`: a thread belongs to the guard that it was started in.

What the program's own code starts is also looked at for what holds in the thread that starts it
alone (`started`); the threads of libraries are their own business.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.checks import TENSORFLOW, TORCH
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Integration, later

_look_at = later(f"{__name__}.started:look_at")


def patches(module: ModuleType) -> Sequence[Patch]:
    """Watch threads as they are started, and as they are joined."""
    return [
        observe(module.Thread, "start", before=_starts, failed=_not_started),
        observe(module.Thread, "join", after=_joined),
    ]


def _starts(thread: Any) -> Any:
    attempt(collector.starts, thread)
    loaded = TORCH in sys.modules or TENSORFLOW in sys.modules
    return _look_at(thread) if loaded and callsite.is_users(caller()) else None


def _not_started(run: Any, error: BaseException, thread: Any) -> None:
    run.leave()


def _joined(result: None, thread: Any, timeout: float | None = None) -> None:
    if "_gradguard_call" in vars(thread) and not thread.is_alive():
        call = vars(thread).pop("_gradguard_call", None)
        if call is not None:
            call.announce()


INTEGRATION = Integration(
    name="threads",
    patches={"threading": patches},
    inline={"threading": later(f"{__name__}.inline:patches")},
)
