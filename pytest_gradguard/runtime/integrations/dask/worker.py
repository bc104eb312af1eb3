"""A task in a worker of dask's: what runs there, and how its results tell of the graph they had.

Results are kept by the worker, handed to other tasks and sent on when they are asked for, so they
stay as they are. A tensor that had a graph is remembered here, and where `distributed` serialises
it, a note goes along in its header. Workers import this module by name.
"""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import (
    calls,
    frameworks,
    locate,
    plain_data,
    probes,
    running,
    simulated_devices,
    task_seeds,
    worker,
)
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    carried,
    fault,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.tasks import task_of

_LOOKED_AT = 2_000
"""How many objects of a result are looked at."""

_HEADER = "gradguard"


@functools.cache
def _origin(process: int) -> str:
    return f"{process}-{uuid.uuid4().hex}"


def here() -> str:
    """A name of this process that no other has."""
    return _origin(os.getpid())


class DaskTask:
    """A function that runs in a worker of dask's, under watch, in place of `function`.

    Args:
        origin: the process that the call was made in.
        token: the call, there.
        asked: what the probes asked.
        function: the user's function.
    """

    def __init__(self, origin: str, token: int, asked: Mapping[str, Any], function: Any) -> None:
        self._gradguard = (origin, token, asked, function)
        name = getattr(function, "__name__", None)
        if name is not None:
            self.__name__ = name

    def __reduce__(self) -> tuple[Any, ...]:
        return (DaskTask, self._gradguard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DaskTask) and self._gradguard[3] == other._gradguard[3]

    def __hash__(self) -> int:
        return hash(self._gradguard[3])

    def __repr__(self) -> str:
        return repr(self._gradguard[3])

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return normalize_token(self._gradguard[3])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, _, asked, function = self._gradguard
        function = attempt(task_seeds.seeded, asked, function, instead=function)
        try:
            return carried(functools.partial(function, *args, **kwargs), self._run, args, kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    def _run(self, task: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        origin, token, asked, function = self._gradguard
        items = [(function, args, kwargs)]
        with Beside(_simulating, origin, asked):
            _arrive(asked, items[0])
            try:
                if origin != here():
                    result, notes = running.in_process(
                        task, items, asked, lambda error, notes: _send(origin, token, notes)
                    )
                elif (call := calls.by_token(token)) is not None:
                    result, notes = running.in_thread(task, call, items, asked), []
                else:
                    return task()
            except BaseException as error:
                without_this_frame(error)
                raise
            try:
                if origin != here():
                    _send(origin, token, notes)
                if frameworks.loaded():
                    _look_at(result, items, origin, token)
            except Exception as error:
                fault(error)
            return result


def _simulating(origin: str, asked: Mapping[str, Any]) -> Any:
    """The simulation of the caller's GPUs, around a task in another process."""
    if origin == here() or simulated_devices.current is None:
        return None
    return simulated_devices.current.during(asked.get("simulated"))


def _arrive(asked: Mapping[str, Any], item: Any) -> None:
    generators = asked.get("gg305")
    if generators is not None:
        try:
            from pytest_gradguard.runtime.pitfalls.random import gg305

            gg305.arrive(generators, item)
        except Exception as error:
            fault(error)


def _send(origin: str, token: int, notes: probes.Notes) -> None:
    """Send notes, and what nested calls found, to the process of the call."""
    found = worker.take_findings()
    if notes or found:
        distributed = sys.modules["distributed"]
        texts = [(name, plain_data.dumps(note)) for name, note in notes]
        message = plain_data.dumps((token, found, texts))
        distributed.get_worker().log_event(topic(origin), message)


def topic(origin: str) -> str:
    """The topic of dask's events on which workers send notes to `origin`."""
    return f"gradguard-{origin}"


def hear(message: object) -> None:
    """Take what a task of a call of this process has to say; anybody may have sent it.

    Raises:
        ValueError: it is no such message.
    """
    token, found, notes = plain_data.loads(message, _Message)
    worker.receive(token, None, found, probes.read(notes))


_Message = tuple[int, list[Finding], list[tuple[str, str]]]
"""The token of a call, what nested calls found, and notes as plain data of their own."""
_Header = tuple[str, int, Object]
"""The process of a call, its token there, and a tensor that had a graph."""


def _look_at(result: Any, items: Any, origin: str, token: int) -> None:
    """Remember the tensors with a graph in a result, directly or in plain containers."""
    from pytest_gradguard.runtime.frameworks.torch import tensors as torch

    tensors: list[Any] = []

    def with_graph(item: Any) -> bool:
        if not torch.is_tensor(item):
            return False
        if torch.grad_fn(item) is not None:
            tensors.append(item)
        return True

    paths = locate.find([("result", result)], with_graph, deep=False, limit=_LOOKED_AT)
    for tensor in tensors:
        history = torch.grad_fn(tensor)
        note = Object(
            path=paths[id(tensor)],
            task=task_of(items[0][0]),
            description=torch.describe(tensor),
            history=type(history).__name__,
            plain=True,
        )
        if origin != here():
            _mark(tensor, plain_data.dumps((origin, token, note)))
        elif _is_over_copies(history, items):
            from pytest_gradguard.runtime.pitfalls.lost import provenance

            note.description["over_copies"] = True
            provenance.remember(token, note, tensor, dropped=False)


def _is_over_copies(history: Any, items: Any) -> bool:
    """Whether a graph ends in tensors that came with the task: they are copies of the caller's."""
    from pytest_gradguard.runtime.frameworks.torch import tensors as torch

    ends = {id(leaf) for leaf in torch.leaves(history)}
    function, args, kwargs = items[0]
    roots = [("args", args), ("kwargs", kwargs), ("", function)]
    return not ends.isdisjoint(locate.find(roots, torch.is_tensor))


_marks: dict[int, tuple[Reference, str]] = {}


def _mark(tensor: Any, note: str) -> None:
    forget = functools.partial(_marks.pop, id(tensor), None)
    _marks[id(tensor)] = (refer(tensor, forget), note)
    serializer.apply()


class Registered:
    """One entry for torch tensors in a table of `distributed`'s, wrapped."""

    def __init__(self, table: str, wrap: Callable[[Any], Any]) -> None:
        self._table = table
        self._wrap = wrap
        self._kept: tuple[Any, Any] | None = None

    def _lookup(self) -> dict[Any, Any]:
        table = getattr(sys.modules["distributed.protocol.serialize"], self._table)
        table.dispatch(sys.modules["torch"].Tensor)  # registers what is registered lazily
        lookup: dict[Any, Any] = table._lookup
        return lookup

    def apply(self) -> None:
        """Wrap the entry, once; where PyTorch is not loaded, there is none."""
        if self._kept is None and hasattr(sys.modules.get("torch"), "Tensor"):
            lookup, kind = self._lookup(), sys.modules["torch"].Tensor
            self._kept = (lookup[kind], self._wrap(lookup[kind]))
            lookup[kind] = self._kept[1]

    def undo(self) -> None:
        """Put the original back, unless somebody has registered another one since."""
        if self._kept is not None:
            lookup, kind = self._lookup(), sys.modules["torch"].Tensor
            if lookup.get(kind) is self._kept[1]:
                lookup[kind] = self._kept[0]
            self._kept = None


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def serialize_torch_tensor(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        header, frames = original(tensor, *args, **kwargs)
        known = _marks.get(id(tensor))
        if known is not None and known[0]() is tensor:
            header = {**header, _HEADER: known[1]}
        return header, frames

    return serialize_torch_tensor


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def deserialize_torch_tensor(header: Any, frames: Any) -> Any:
        tensor = original(header, frames)
        try:
            note = header.get(_HEADER)
            if note is not None:
                _take(tensor, note)
        except ValueError:  # it is none of the guard's
            pass
        except Exception as error:
            fault(error)
        return tensor

    return deserialize_torch_tensor


def _take(tensor: Any, note: object) -> None:
    origin, token, about = plain_data.loads(note, _Header)
    if origin == here():
        from pytest_gradguard.runtime.pitfalls.lost import provenance

        provenance.remember(token, about, tensor)


serializer = Registered("dask_serialize", _noting)
deserializer = Registered("dask_deserialize", _reading)
