"""joblib's dask backend: its batches, and the calls of it that would never end.

The backend reads the tasks off a batch and gives them to a client, in the client's thread. What
goes wrong there reaches nobody, and `Parallel` waits forever: what a client cannot pickle, and
what it cannot read of a result. Here that becomes the error of the call.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import client, opening
from pytest_gradguard.runtime.integrations.joblib.backends import KnownBatch
from pytest_gradguard.runtime.kernel import locate
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import fault, without_this_frame
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import task_of

_SUBMITS = ("submit", "apply_async")
_backends: weakref.WeakSet[Any] = dropped_at_end(weakref.WeakSet())


def patches(module: ModuleType) -> list[Patch]:
    """Watch joblib's dask backend, where `distributed` is installed."""
    backend = module.DaskDistributedBackend
    if getattr(module, "distributed", None) is None:
        return []
    submit = next((name for name in _SUBMITS if name in vars(backend)), _SUBMITS[0])
    return [
        observe(backend, submit, after=_submitted),
        Patch(backend, "_to_func_args", _watched_arguments),
        Patch(sys.modules["distributed.client"].as_completed, "_track_future", _watched_result),
    ]


class DaskBatch(KnownBatch):
    """A batch of joblib's whose tasks are watched, and whose end is seen to."""

    def __init__(self, batch: Any, call: Call, backend: Any) -> None:
        super().__init__(batch, call)
        self._lock = Lock()
        self._error: BaseException | None = None
        self._waiting: tuple[Any, Any, Any] | None = None
        opening.opened(backend.client, call)
        tasks = batch.items
        self.items = [
            (client.ShippedDaskTask(call, function, tasks, self), args, kwargs)
            for function, args, kwargs in tasks
        ]

    def submitted(self, backend: Any, future: Any, callback: Any) -> None:
        """Remember who waits for this batch."""
        names = dict.fromkeys(task_of(function).name for function, _, _ in self._batch.items)
        future._gradguard_tasks = " or ".join(f"`{name}`" for name in names)
        with self._lock:
            self._waiting = (backend, future, callback)
            error = self._error
        if error is not None:
            end(*self._waiting, error)

    def cannot_leave(self, error: BaseException) -> None:
        """End the call with an error: the batch cannot be pickled."""
        if not isinstance(error, Exception):
            return
        try:
            error = _named(error, self._batch.items)
        except Exception as mistake:
            fault(mistake)
        with self._lock:
            self._error = error
            waiting = self._waiting
        if waiting is not None:
            end(*waiting, error)


def end(backend: Any, future: Any, callback: Any, error: BaseException) -> None:
    """Let the call that waits for `future` end in `error`."""
    if not future.done():
        future.set_exception(error)
    if callback is not None and getattr(backend, "supports_retrieve_callback", False):
        utils: Any = sys.modules.get("joblib._utils")
        wrap = getattr(utils, "_ExceptionWithTraceback", None)
        callback(error if wrap is None else wrap(error))


def _named(error: BaseException, items: Any) -> BaseException:
    """An error that says which object it is that dask cannot serialise."""
    for function, args, kwargs in items:
        roots = [
            *((f"args[{index}]", value) for index, value in enumerate(args)),
            *((f"kwargs[{key!r}]", value) for key, value in kwargs.items()),
            ("the function itself", function),
        ]
        for path, value in roots:
            reason = _refusal(value)
            if reason is not None:
                path, value = _inside(path, value)
                what = f"`{path}` of `{task_of(function).name}` ({type(value).__qualname__})"
                return _error(what, reason, error)
    return _error("a task", str(error.args[0]) if error.args else repr(error), error)


def _error(what: str, reason: str, cause: BaseException) -> TypeError:
    error = TypeError(
        f"dask cannot serialise {what}: {reason}. Without gradguard, joblib's dask backend would "
        "wait forever here."
    )
    error.__cause__ = cause
    return error


def _refusal(value: Any) -> str | None:
    """Why dask's pickling refuses `value`; asked only once something has been refused."""
    try:
        sys.modules["cloudpickle"].dumps(value)  # as distributed does, which would log it again
    except Exception as error:
        return str(error)
    return None


def _inside(path: str, value: Any) -> tuple[str, Any]:
    """The innermost object in plain containers and attributes that is refused."""
    for _ in range(10):
        inner = next(
            (one for one in locate.inside(path, value) if _refusal(one[1]) is not None), None
        )
        if inner is None:
            break
        path, value = inner
    return path, value


def _submitted(future: Any, backend: Any, func: Any, callback: Any = None) -> None:
    if isinstance(func, DaskBatch):
        _backends.add(backend)
        func.submitted(backend, future, callback)


def _watched_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _to_func_args(self: Any, func: Any) -> Any:
        try:
            return await original(self, func)
        except Exception as error:
            without_this_frame(error)
            if isinstance(func, DaskBatch):
                func.cannot_leave(error)
            raise

    return _to_func_args


def _watched_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _track_future(self: Any, future: Any) -> Any:
        try:
            return await original(self, future)
        except Exception as error:
            without_this_frame(error)
            if not _cannot_be_read(self, future, error):
                raise

    return _track_future


def _cannot_be_read(completed: Any, future: Any, error: Exception) -> bool:
    """End the call that waits for a result which dask could not serialise."""
    for backend in list(_backends):
        if backend.waiting_futures is completed and future in backend._results:
            reason = _said(str(error)) or repr(error)
            waiting = (backend._results.pop(future), backend._callbacks.pop(future))
            tasks = getattr(waiting[0], "_gradguard_tasks", "a task")
            end(backend, *waiting, _error(f"what {tasks} returned", reason, error))
            return True
    return False


_FRAME = '  File "'
_WHERE = "when serializing"


def _said(text: str) -> str:
    """What dask says in its first line, and the error that ends the traceback below it.

    Since Python 3.14, lines after that error say where in the object it came from.
    """
    first, *below = text.strip().splitlines() or [""]
    frames = [number for number, line in enumerate(below) if line.startswith(_FRAME)]
    after = below[frames[-1] + 1 :] if frames else below
    why = [line.strip() for line in after if line.strip() and not line.startswith(" ")]
    said = [*why[:1], *(line for line in why[1:] if line.startswith(_WHERE))]
    return f"{first} ({', '.join(said)})" if said else first
