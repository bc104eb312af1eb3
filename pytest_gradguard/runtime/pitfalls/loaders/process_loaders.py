"""A daemon that the program starts itself tells of the loader that it failed of: GG206.

It writes to a pipe as it ends with that error (see `pipes`), which nobody else gets to hear of.
"""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager
from typing import Any

from pytest_gradguard.daemon_process import DaemonProcess
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import telling
from pytest_gradguard.runtime.kernel.dispatch.process_start import hearing
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.loaders import gg206

_LOADERS = "torch.utils.data.dataloader"


def told(process: Any, call: Call, function: Any) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; what it tells becomes evidence of `call`.

    None where it can have no loaders that matter.
    """
    if not process.daemon or _LOADERS not in sys.modules or "GG206" in call.dropped:
        return None
    task = tuple(task_of(function))
    return hearing(
        process,
        lambda inner, write: DaemonProcess(process, inner, write, task),
        functools.partial(telling.expect, call),
    )


def tell(error: AssertionError, task: tuple[Any, ...], write: Any) -> None:
    """Tell the parent, from a daemon that ends with `error`, of the loader that raised it."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__") == _LOADERS and "loader" in frame.f_locals:
            asked = gg206.asked(frame.f_locals["loader"])
            failed = gg206.of_daemon(asked, error)
            if failed is not None:
                path, line = callsite.line_of(error)
                failed = failed._replace(task=Task(*task), path=path, line=line)
                telling.Teller(write).tell("gg206", failed)
            return
        traceback = traceback.tb_next
