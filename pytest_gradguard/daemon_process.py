"""What a daemon that the program starts runs in: it tells of the loader that it failed of.

Nothing of the guard is imported before: most daemons iterate no loader, or one without workers.
"""

from __future__ import annotations

from importlib import import_module

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
        run = running(self._process, self._inner, work)
        try:
            return run()
        except BaseException as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # the program's frames alone
            try:
                self._tell(error)
            except Exception as mistake:
                import_module(f"{_RUNTIME}.faults").fault(mistake)
            raise

    def _tell(self, error: BaseException) -> None:
        for _ in range(_CHAINED):
            if isinstance(error, AssertionError):
                module = import_module(f"{_RUNTIME}.dispatch.process_loaders")
                module.tell(error, self._task, self._write)
            following = error.__cause__ or error.__context__
            if following is None:
                break
            error = following


def running(process: Any, inner: Any, work: Any) -> Callable[[], Any]:
    """What runs the function of a process: `work`, through what stands in its way already.

    Args:
        process: the process.
        inner: another of these classes; or None, or the process's own method, where what stood
            in that place is of no use in this process.
        work: that of the one around it; None: the process's own method.
    """
    run: Callable[[], Any] = work or type(process).run.__get__(process)
    if inner is None or getattr(inner, "__self__", None) is process:
        return run

    def through() -> Any:
        faults = import_module(f"{_RUNTIME}.faults")
        with faults.hidden_frame:
            return faults.carried(run, inner)

    return through


_CHAINED = 10
"""How far it is looked for what an error was raised of: `spawn` of torch exits with it."""
