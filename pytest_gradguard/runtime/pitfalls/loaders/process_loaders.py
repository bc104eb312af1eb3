"""GG206: a daemon that the program starts itself reports the loader that made it fail.

It writes to a pipe as it ends with that error (see `pipes`); no other process learns of it.
"""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager
from typing import Any

from pytest_gradguard.daemon_process import DaemonProcess
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import reporting
from pytest_gradguard.runtime.kernel.dispatch.process_start import hearing
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.loaders import gg206

_LOADERS = "torch.utils.data.dataloader"


def reporting_context(
    process: Any, call: Call, function: Any
) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; its report becomes evidence of `call`.

    None if it can have no loaders that matter.
    """
    if not process.daemon or _LOADERS not in sys.modules or "GG206" in call.dropped:
        return None
    task = tuple(task_of(function))
    return hearing(
        process,
        lambda inner, write: DaemonProcess(process, inner, write, task),
        functools.partial(reporting.expect, call),
    )


def report(error: AssertionError, task: tuple[Any, ...], write: Any) -> None:
    """Report, from a daemon that ends with `error`, the loader that raised it."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__") == _LOADERS and "loader" in frame.f_locals:
            asked = gg206.asked(frame.f_locals["loader"])
            failed = gg206.of_daemon(asked, error)
            if failed is not None:
                path, line = callsite.line_of(error)
                failed = failed._replace(task=Task(*task), path=path, line=line)
                reporting.Reporter(write).report("gg206", failed)
            return
        traceback = traceback.tb_next
