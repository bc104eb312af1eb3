"""Reports findings before `os._exit`, which runs no exit handlers."""

from __future__ import annotations

import os
from collections.abc import Callable

from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches


def before_exit(report: Callable[[], object]) -> Patches:
    """Call `report` before this process ends by `os._exit`; children that it forks do not."""
    process = os.getpid()

    def exiting(*args: object, **kwargs: object) -> None:
        if os.getpid() == process:
            report()

    patches = Patches([observe(os, "_exit", before=exiting)], lasting=True)
    patches.apply()
    return patches
