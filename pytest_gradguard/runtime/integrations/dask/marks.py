"""Notes that travel with tensors and modules where `distributed` serializes them.

A worker marks what a task returns. Wherever that is serialized later, its note goes along in the
header, as plain data: a peer that does not run the guard ignores it. Workers import this module by
name.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import plain_data, shipped_modules
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.observing import observed
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task

_HEADER = "gradguard"


@functools.cache
def _origin(process: int) -> str:
    return f"{process}-{uuid.uuid4().hex}"


def here() -> str:
    """A name of this process that no other has."""
    return _origin(os.getpid())


class Returned(NamedTuple):
    """A module that a task returns, a copy of one that was sent.

    Attributes:
        token, number: the call that it was sent with, and its number there.
        part: the path, in that module, to what is returned.
        task: the function that returns it.
    """

    token: int
    number: int
    part: str
    task: Task


_marks: dict[int, tuple[Reference, str]] = dropped_at_end({})


def mark(item: Any, origin: str, token: int, about: Object | Returned) -> None:
    """Have a tensor or module take along what it is, wherever it is serialized from now on.

    Args:
        item: the tensor, which has a graph here, or the module.
        origin, token: the process of the call that it is a result of, and the call there.
        about: what it is.
    """
    forget = functools.partial(_marks.pop, id(item), None)
    _marks[id(item)] = (refer(item, forget), plain_data.dumps((origin, token, about)))
    for one in serializers:
        one.apply()


class Registered:
    """Wrapped entries, in a table of `distributed`, for a class of torch and its subclasses.

    Args:
        kind: the name of the class in torch.
        table: the name of the table.
        wrap: makes the replacement from the original.
    """

    def __init__(self, kind: str, table: str, wrap: Callable[[Any], Any]) -> None:
        self._kind = operator.attrgetter(kind)
        self._table = table
        self._wrap = wrap
        self._kept: tuple[Any, Any] | None = None

    def apply(self) -> None:
        """Wrap the entries, once; where PyTorch is not loaded, there are none."""
        if self._kept is None:
            try:
                kind = self._kind(sys.modules.get("torch"))
            except AttributeError:
                return
            table = getattr(sys.modules["distributed.protocol.serialize"], self._table)
            original = table.dispatch(kind)  # registers what is registered lazily
            self._kept = (original, self._wrap(original))
            self._replace(*self._kept)

    def undo(self) -> None:
        """Put the original back, except where somebody has registered another one since."""
        if self._kept is not None:
            original, mine = self._kept
            self._replace(mine, original)
            self._kept = None

    def _replace(self, old: Any, new: Any) -> None:
        table = getattr(sys.modules["distributed.protocol.serialize"], self._table)
        for kind, entry in list(table._lookup.items()):  # it remembers subclasses, too
            if entry is old:
                table._lookup[kind] = new


def _noted(serialized: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
    header, frames = serialized
    known = _marks.get(id(item))
    if known is None or known[0]() is not item:
        return None
    return {**header, _HEADER: known[1]}, frames


def _read(take: Callable[[Any, object], object], item: Any, header: Any, frames: Any) -> None:
    note = header.get(_HEADER)
    if note is not None:
        with suppress(ValueError):  # it is none of the guard's
            take(item, note)


def _take_tensor(tensor: Any, note: object) -> None:
    origin, token, about = plain_data.loads(note, tuple[str, int, Object])
    if origin == here():
        from pytest_gradguard.runtime.pitfalls.lost import provenance

        provenance.remember(token, about, tensor)


def _take_module(module: Any, note: object) -> None:
    origin, token, about = plain_data.loads(note, tuple[str, int, Returned])
    if origin == here():
        shipped_modules.came_home(token, about, module)


serializers = (
    Registered("Tensor", "dask_serialize", observed(result=_noted)),
    Registered("nn.Module", "dask_serialize", observed(result=_noted)),
)
deserializers = (
    Registered("Tensor", "dask_deserialize", observed(after=partial(_read, _take_tensor))),
    Registered("nn.Module", "dask_deserialize", observed(after=partial(_read, _take_module))),
)
