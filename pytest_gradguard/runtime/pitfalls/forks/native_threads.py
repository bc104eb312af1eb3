"""The native threads of this process and what they wait for, as Linux tells it.

Elsewhere, and where the kernel does not tell, nothing is known: empty answers.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from pytest_gradguard.platforms import HERE

_PRIVATE = 0x80
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET


class Waiting(NamedTuple):
    """A thread that stands in a system call.

    Attributes:
        number: which call.
        arguments: the six arguments of it.
        place: the address of the instruction it stands at.
    """

    number: int
    arguments: tuple[int, ...]
    place: int

    @property
    def for_a_thread(self) -> bool:
        """Whether only another thread of this process can end this wait: no time will."""
        return self.on_a_lock and self.arguments[3] == 0

    @property
    def on_a_lock(self) -> bool:
        """Whether it waits for another thread of this process, maybe for a limited time."""
        operation = self.arguments[1]
        return (
            self.number == HERE.futex()
            and bool(operation & _PRIVATE)
            and operation & 0x7F in _WAITS
        )


def ids() -> set[int]:
    """The native ids of all threads of this process."""
    return HERE.threads()


def foreign() -> set[int]:
    """Those that are neither the calling thread nor one that Python started."""
    ours = {thread.native_id for thread in threading.enumerate()}
    return ids() - ours - {threading.get_native_id()}


def readable() -> bool:
    """Whether this system says what a thread waits for."""
    return HERE.system_call(threading.get_native_id()) is not None


def waiting(thread: int) -> Waiting | None:
    """What `thread` waits for; None where it runs, has ended, or where nobody knows."""
    words = (HERE.system_call(thread) or "").split()
    if len(words) != 9:
        return None
    number, *numbers = (int(word, 0) for word in words)
    return Waiting(number, tuple(numbers[:6]), numbers[7])


def mapped_at(library: str) -> tuple[tuple[int, int], ...]:
    """Where the code of a loaded `library` stands in memory: first and last addresses."""
    found = (it for it in HERE.mappings() if it.path == library and "x" in it.access)
    return tuple((it.start, it.end) for it in found)
