"""What a daemon that the program starts runs in: it tells of the loader that it failed of.

Nothing of the guard is imported before: most daemons iterate no loader, or one without workers.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from pytest_gradguard.aside import safely

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_RUNTIME = "pytest_gradguard.runtime"


class DaemonProcess:
    """In place of the method `run` of a daemonic process.

    Args:
        process: the process.
        inner: what stands in that place already.
        write: the end of a pipe to tell it to.
        task: the name, path and line of the function that the process runs.
    """

    def __init__(self, process: Any, inner: Any, write: Any, task: tuple[Any, ...]) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._task = task

    def __reduce__(self) -> tuple[Any, ...]:
        return DaemonProcess, (self._process, self._inner, self._write, self._task)

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        run = work or type(self._process).run.__get__(self._process)
        run = safely(through, run, self._process, self._inner, instead=run)
        try:
            return run()
        except BaseException as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # the program's frames alone
            safely(self._tell, error)
            raise

    def _tell(self, error: BaseException) -> None:
        for _ in range(_CHAINED):
            if isinstance(error, AssertionError):
                module = import_module(f"{_RUNTIME}.pitfalls.loaders.process_loaders")
                module.report(error, self._task, self._write)
            following = error.__cause__ or error.__context__
            if following is None:
                break
            error = following


def through(run: Callable[[], Any], process: Any, inner: Any) -> Callable[[], Any]:
    """What runs the function of a process, through what stands in its way already.

    Args:
        run: runs it.
        process: the process.
        inner: another of these classes; or None, or the process's own method, where what stood
            in that place is of no use in this process.
    """
    if inner is None or getattr(inner, "__self__", None) is process:
        return run
    return partial(import_module(f"{_RUNTIME}.kernel.faults").carried, run, inner)


_CHAINED = 10
"""How far it is looked for what an error was raised of: `spawn` of torch exits with it."""
