"""A process that the program starts itself: its function runs in the calling process."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.processes.starting import is_pools, start_method
from pytest_gradguard.runtime.kernel import inline
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers
from pytest_gradguard.runtime.kernel.tasks import code_of


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.process`."""
    return [Patch(module.BaseProcess, "start", functools.partial(_inline_start, workers, module))]


def queues(module: ModuleType) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.queues`."""
    return [observe(module.Queue, "put", arguments=_copied)]


def connections(module: Any) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.connection`."""
    return [observe(module._ConnectionBase, "send", arguments=_copied)]


def _inline_start(
    workers: Workers, module: Any, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        call = None
        if not is_pools(self):
            call = calling.begin(workers, single=code_of(self._target) or type(self))
        if call is None:
            return original(self)
        self._popen = _Ended(self)
        self._sentinel = self._popen.sentinel
        forked = start_method(self) == "fork"
        before = module._current_process
        module._current_process = self
        try:
            inline.run_process(workers, call, self.run, forked)
        except SystemExit as end:
            self._popen.returncode = _status(end)
        except Exception:
            sys.stderr.write(f"Process {self.name}:\n{traceback.format_exc()}")
            self._popen.returncode = 1
        finally:
            module._current_process = before

    return start


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code if isinstance(end.code, int) else 1


class _Ended:
    """Stands for the process of the system's that there is none of: it has ended."""

    def __init__(self, process: Any) -> None:
        self.pid = os.getpid()
        self.returncode = 0
        self.sentinel, end = os.pipe()
        os.close(end)  # so that it is ready, as that of a process that has ended

    def poll(self, flag: int = 0) -> int:
        """Its status."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status, at once."""
        return self.returncode

    def terminate(self) -> None:
        """It has ended."""

    kill = terminate

    def close(self) -> None:
        """Close its sentinel."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def _copied(carrier: Any, obj: Any, *args: Any, **kwargs: Any) -> Arguments | None:
    if not inline.in_task():
        return None
    return (carrier, inline.state.isolation.sent(obj), *args), kwargs


def ranks(module: ModuleType) -> list[Patch]:
    """The patches of `torch.distributed`: a rank waits for the others."""
    return [observe(module, "init_process_group", before=_joins)]


def _joins(*_: Any, **__: Any) -> None:
    if inline.in_task():
        inline.state.give_up("is a rank of torch.distributed, which needs the others")
