"""Functions and objects that are called on one kind of event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_L = TypeVar("_L")


class Source(Protocol):
    """A source of events while it is applied: patches, or a library's own hook."""

    def apply(self) -> object:
        """Put it in place, once."""

    def undo(self) -> object:
        """Restore the library."""


class Entry(NamedTuple, Generic[_L]):
    """One subscription; see `subscribe`."""

    order: int
    listener: _L
    lasting: bool
    raises: tuple[type[Exception], ...]


class Subscribers(Generic[_L]):
    """The subscribers to one kind of event; those of the guard end with it.

    Args:
        source: applied as long as there is a subscriber; patches are `lasting`.

    Attributes:
        entries: the subscriptions, in the order of notification.
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
        """Notify `listener` from now on, once.

        Args:
            listener: a function or an object.
            order: listeners of a lower one are first; of an equal one, in order of subscription.
            lasting: it unsubscribes by itself, whenever the guard ends.
            raises: the errors of the listener that are meant for the user.

        Raises:
            AttributeError: the library has an unknown layout; nothing has changed.
        """
        with self._lock:
            if listener not in self.now:
                if self._source is not None:
                    self._source.apply()
                entries = (*self.entries, Entry(order, listener, lasting, raises))
                self._set(sorted(entries, key=lambda one: one.order))

    def unsubscribe(self, listener: _L) -> None:
        """Undo `subscribe`; after the last one, the library is restored."""
        self._keep(lambda one: one.listener != listener)

    def clear(self) -> None:
        """Undo `subscribe` for all that are not lasting."""
        self._keep(lambda one: one.lasting)

    def _keep(self, is_kept: Callable[[Entry[_L]], bool]) -> None:
        with self._lock:
            self._set(filter(is_kept, self.entries))
            if self._source is not None and not self.entries:
                self._source.undo()

    def _set(self, entries: Iterable[Entry[_L]]) -> None:
        self.entries = tuple(entries)
        self.now = tuple(one.listener for one in self.entries)
