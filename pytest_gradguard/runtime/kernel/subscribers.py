"""Functions and objects that are told of one kind of event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_L = TypeVar("_L")


class Source(Protocol):
    """What tells of an event while it is in place: patches, or a library's own hook."""

    def apply(self) -> object:
        """Put it in place, once."""

    def undo(self) -> object:
        """Leave the library as it was."""


class Entry(NamedTuple, Generic[_L]):
    """One subscription; see `subscribe`."""

    order: int
    listener: _L
    lasting: bool
    raises: tuple[type[Exception], ...]


class Subscribers(Generic[_L]):
    """Who is told of one kind of event; what subscribes for the guard ends with it.

    Args:
        source: in place as long as there is a subscriber; patches are `lasting`.

    Attributes:
        entries: the subscriptions, from the first to be told to the last.
        now: their listeners.
    """

    def __init__(self, source: Source | None = None) -> None:
        self.now: tuple[_L, ...] = ()
        self.entries: tuple[Entry[_L], ...] = ()
        self._source = source
        self._lock = Lock()
        dropped_at_end(self)

    def subscribe(
        self,
        listener: _L,
        order: int = 0,
        *,
        lasting: bool = False,
        raises: tuple[type[Exception], ...] = (),
    ) -> None:
        """Tell `listener` from now on, once.

        Args:
            listener: a function or an object.
            order: of a lower one, listeners come first; of an equal one, as they subscribed.
            lasting: it unsubscribes by itself, whenever the guard ends.
            raises: the errors of the listener that are meant for the user.

        Raises:
            AttributeError: the library is built otherwise than we know it; nothing has changed.
        """
        with self._lock:
            if listener not in self.now:
                if self._source is not None:
                    self._source.apply()
                entries = (*self.entries, Entry(order, listener, lasting, raises))
                self._set(sorted(entries, key=lambda one: one.order))

    def unsubscribe(self, listener: _L) -> None:
        """Undo `subscribe`; after the last one, the library is as it was."""
        self._keep(lambda one: one.listener != listener)

    def clear(self) -> None:
        """Undo `subscribe` for all that subscribed for the guard."""
        self._keep(lambda one: one.lasting)

    def _keep(self, stays: Callable[[Entry[_L]], bool]) -> None:
        with self._lock:
            self._set(filter(stays, self.entries))
            if self._source is not None and not self.entries:
                self._source.undo()

    def _set(self, entries: Iterable[Entry[_L]]) -> None:
        self.entries = tuple(entries)
        self.now = tuple(one.listener for one in self.entries)
