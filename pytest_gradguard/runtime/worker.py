"""What runs in the worker: the batch under watch, and the way its results go back.

Workers import this module by name, so it stays light, and its functions keep their signatures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime import collector, frameworks, locate
from pytest_gradguard.runtime.crossing import bracketed
from pytest_gradguard.runtime.evidence import Object, Task
from pytest_gradguard.runtime.faults import fault

_inside = collector.Collector()


def open_batch(token: int, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> WorkerBatch:
    """Rebuild a batch of tasks in the worker; called by unpickling."""
    return WorkerBatch(token, rebuild(*arguments))


class WorkerBatch:
    """A batch of joblib's in a worker; calling it runs the tasks and returns their results."""

    def __init__(self, token: int, batch: Any) -> None:
        self._token = token
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def __call__(self) -> Any:
        _watch_nested_calls()
        collector.enter(_inside)
        try:
            results = self._batch()
        finally:
            collector.leave(_inside)
        found = _take_findings()
        if found or frameworks.loaded():
            return Outbox(self._token, results, self._batch.items, found)
        return results


def _watch_nested_calls() -> None:
    from pytest_gradguard.runtime import dispatch

    try:
        dispatch.apply()
    except Exception as error:
        fault(error)


def _take_findings() -> list[Finding]:
    global _inside
    if _inside.empty:
        return []
    try:
        found = _inside.findings
    except Exception as error:
        fault(error)
        found = []
    _inside = collector.Collector()
    return found


class Outbox:
    """The results of a batch on their way back; unpickled, it is the plain list of them."""

    def __init__(self, token: int, results: Any, items: Any, found: list[Finding]) -> None:
        self._token = token
        self._results = results
        self._items = items
        self._found = found

    def __reduce__(self) -> tuple[Any, ...]:
        crossing = Return(self._token, self._results, self._items)
        return bracketed(crossing, receive, (self._token, self._results, self._found))


class Return:
    """Hears of the tensors among the results, in the worker."""

    def __init__(self, token: int, results: Any, items: Any) -> None:
        self._token = token
        self._results = results
        self._items = items
        self._plain: dict[int, str] | None = None
        self._buried: dict[int, str] | None = None

    def reduced(self, tensor: Any, is_parameter: bool, reduction: Any) -> Any:
        """Give a tensor that has history a note that travels with it."""
        from pytest_gradguard.runtime.frameworks import torch

        history = torch.grad_fn(tensor)
        if history is None or not isinstance(reduction, tuple):
            return reduction
        path, plain = self._locate(tensor)
        index, _, path = path.partition("|")
        note = Object(
            path=path,
            task=task_of(self._items[int(index)][0]),
            description=torch.describe(tensor),
            history=type(history).__name__,
            plain=plain,
        )
        rebuild, arguments, *rest = reduction
        return (rebuild_result, (self._token, note, rebuild, arguments), *rest)

    def _locate(self, tensor: Any) -> tuple[str, bool]:
        if self._plain is None:
            self._plain = self._find(deep=False)
        path = self._plain.get(id(tensor))
        if path is not None:
            return path, True
        if self._buried is None:
            self._buried = self._find(deep=True)
        return self._buried.get(id(tensor), "0|result"), False

    def _find(self, deep: bool) -> dict[int, str]:
        from pytest_gradguard.runtime.frameworks import torch

        roots = [(f"{index}|result", result) for index, result in enumerate(self._results)]
        return locate.find(roots, torch.is_tensor, deep=deep)


def task_of(function: Any) -> Task:
    """The user's own function behind what `delayed` was given."""
    for _ in range(20):
        if isinstance(function, functools.partial):
            inner = function.func
        else:
            inner = (
                getattr(function, "__func__", None)
                or getattr(function, "__wrapped__", None)
                or vars(function).get("function")
                if hasattr(function, "__dict__")
                else None
            )
        if not callable(inner) or inner is function:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return Task(
        name=name.replace("<locals>.", ""),
        path=None if code is None else code.co_filename,
        line=None if code is None else code.co_firstlineno,
    )


def receive(token: int, results: Any, found: list[Finding]) -> Any:
    """Take the results of a batch in the parent; called by unpickling."""
    if found:
        from pytest_gradguard.runtime import calls

        call = calls.by_token(token)
        if call is not None:
            for finding in found:
                call.collector.add(finding)
    return results


def rebuild_result(
    token: int, note: Object, rebuild: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Rebuild, in the parent, a tensor that had history in the worker; called by unpickling."""
    tensor = rebuild(*arguments)
    try:
        from pytest_gradguard.runtime import provenance

        provenance.remember(token, note, tensor)
    except Exception as error:
        fault(error)
    return tensor
