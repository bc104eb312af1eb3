"""A daemon that the program starts itself tells of the loader that it failed of: GG206.

It writes to a pipe as it ends with that error (see `pipes`), which nobody else gets to hear of.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from pytest_gradguard.daemon_process import DaemonProcess
from pytest_gradguard.runtime import callsite
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.checks import gg206
from pytest_gradguard.runtime.dispatch.process_gradients import package_of
from pytest_gradguard.runtime.pipes import ends_beside
from pytest_gradguard.runtime.tasks import Task, task_of

_LOADERS = "torch.utils.data.dataloader"


@contextmanager
def told(process: Any, call: Call, function: Any) -> Iterator[None]:
    """A block in which `process` is started; what it tells becomes evidence of `call`."""
    if not process.daemon or _LOADERS not in sys.modules or "GG206" in call.dropped:
        yield
        return
    connection: Any = import_module(f"{package_of(process)}.connection")
    ends = ends_beside(partial(connection.Pipe, duplex=False))
    if ends is None:
        yield
        return
    read, write = ends
    before = vars(process).get("run")
    process.run = DaemonProcess(process, before, write, tuple(task_of(function)))
    try:
        yield
    finally:
        if before is None:
            del process.run
        else:
            process.run = before
        write.close()
        evidence = gg206.Evidence.of(call, about="process", framework="torch", type="DataLoader")
        if evidence is not None:
            evidence.wait_for(os.dup(read.fileno()))
        read.close()


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
                os.set_blocking(write.fileno(), False)  # nobody may be listening
                os.write(write.fileno(), pickle.dumps(failed))
            return
        traceback = traceback.tb_next
