"""What one line of a program has handed to workers: how many calls and tasks, bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pytest_gradguard.findings import Location

__all__ = ["Tally", "merge_tallies"]


@dataclass
class Tally:
    """The parallel calls of one line to one kind of workers.

    Attributes:
        location: the line.
        backend: the kind of workers.
        calls, tasks: how many.
        bytes: the size of what was pickled for the workers, where the library tells it.
        seconds: how long the calls took together, where each waits for its results.
    """

    location: Location
    backend: str
    calls: int = 0
    tasks: int = 0
    bytes: int | None = None
    seconds: float | None = None

    def add(self, *, calls: int = 0, tasks: int = 0, size: int = 0, seconds: float = 0) -> None:
        """Count what has come on top."""
        self.calls += calls
        self.tasks += tasks
        if size:
            self.bytes = (self.bytes or 0) + size
        if seconds:
            self.seconds = (self.seconds or 0) + seconds

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "location": self.location.to_dict()}


def merge_tallies(tallies: Iterable[Tally]) -> list[Tally]:
    """Join those of one line and kind, as several tests or processes have them; by place."""
    merged: dict[tuple[Location, str], Tally] = {}
    for one in tallies:
        known = merged.get((one.location, one.backend))
        if known is None:
            merged[one.location, one.backend] = replace(one)
        else:
            known.add(
                calls=one.calls, tasks=one.tasks, size=one.bytes or 0, seconds=one.seconds or 0
            )
    return sorted(
        merged.values(),
        key=lambda one: (one.location.path, one.location.line, one.location.column, one.backend),
    )
