"""The framework-independent part of a watch: entries, their names, their verdicts."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from pytest_gradguard.details import Details
from pytest_gradguard.gradients import reasons
from pytest_gradguard.gradients.recording import LogT, now
from pytest_gradguard.gradients.targets import Item, unwrapped
from pytest_gradguard.runtime.kernel.callsite import Site


class Entry:
    """One watched tensor or variable.

    Attributes:
        name: its dotted name.
        ref: returns the tensor; None once it no longer exists.
        received: whether a gradient arrived since the watch began.
        arrived: the call site of the last backward pass that brought one.
        description: type, shape, dtype and device.
    """

    ref: Callable[[], Any]
    description: Details

    def __init__(self, name: str) -> None:
        self.name = name
        self.received = False
        self.arrived: Site | None = None


EntryT = TypeVar("EntryT", bound=Entry)


class FrameworkWatch(ABC, Generic[EntryT, LogT]):
    """The watched tensors of one framework.

    Attributes:
        began: number of the event at which the watch was made.
        log: the log, from the start of the watch on.
    """

    def __init__(self, items: list[Item], *, check_values: bool) -> None:
        self._check_values = check_values
        self._owners: list[tuple[str, weakref.ref[Any]]] = []
        self._entries: dict[int, EntryT] = {}
        self._by_name: dict[str, EntryT] = {}
        self._tensors = False
        self.began = now()
        self.log: LogT | None = None
        for item in items:
            if item.kind in ("module", "model"):
                self._owners.append((item.name, weakref.ref(unwrapped(item.value))))
                self._look_for_new()
            else:
                self._tensors = True
                self._add(item.name, item.value)

    @abstractmethod
    def _add(self, name: str, tensor: Any) -> None:
        """Watch `tensor` under `name`."""

    @abstractmethod
    def _look_for_new(self) -> None:
        """Find parameters that were added or replaced since the last check."""

    @abstractmethod
    def _verdict(self, entry: EntryT, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
        """Why `entry` has no (good) gradient; None if it has one."""

    @abstractmethod
    def start(self) -> None:
        """Begin to watch."""

    @abstractmethod
    def stop(self) -> None:
        """Check a last time, and restore everything."""

    @abstractmethod
    def look(self) -> None:
        """Update all entries."""

    @property
    def entries(self) -> list[EntryT]:
        """The current entry of each name."""
        return list(self._by_name.values())

    def _live_owners(self) -> Iterator[tuple[str, Any]]:
        """The watched modules or models that still exist, with their names."""
        for name, reference in self._owners:
            owner = reference()
            if owner is not None:
                yield name, owner

    def entry_of(self, tensor: Any) -> EntryT | None:
        """The entry of `tensor`."""
        entry = self._entries.get(id(tensor))
        return entry if entry is not None and entry.ref() is tensor else None

    def watches(self, tensor: Any) -> bool:
        """Whether `tensor` is watched."""
        return self.entry_of(tensor) is not None

    def description(self, name: str) -> Details:
        """Type, shape, dtype and device of the tensor called `name`."""
        entry = self._by_name.get(name)
        return {} if entry is None else entry.description

    def unread(self) -> list[str]:
        """Names whose last gradient had no readable values."""
        return []

    def verdicts(self, *, finite: bool, nonzero: bool) -> dict[str, reasons.Reason | None]:
        """Why there is no (good) gradient, by name; None if there is one."""
        return {
            entry.name: self._verdict(entry, finite=finite, nonzero=nonzero)
            for entry in self.entries
        }
