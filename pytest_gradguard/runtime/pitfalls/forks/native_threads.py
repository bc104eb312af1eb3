"""The native threads of this process and what they wait for, from Linux's /proc.

On other systems, and where the kernel does not report it, all answers are empty.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from pytest_gradguard.platforms import HERE

_PRIVATE = 0x80
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET


class Waiting(NamedTuple):
    """A thread in a system call.

    Attributes:
        number: of the system call.
        arguments: its six arguments.
        place: the address of its current instruction.
    """

    number: int
    arguments: tuple[int, ...]
    place: int

    @property
    def for_a_thread(self) -> bool:
        """Whether only another thread of this process can end this wait: it has no timeout."""
        return self.on_a_lock and self.arguments[3] == 0

    @property
    def on_a_lock(self) -> bool:
        """Whether it waits for another thread of this process, possibly with a timeout."""
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
    """The ids of threads that Python did not start, except the calling one."""
    ours = {thread.native_id for thread in threading.enumerate()}
    return ids() - ours - {threading.get_native_id()}


def readable() -> bool:
    """Whether this system reports what a thread waits for."""
    return HERE.system_call(threading.get_native_id()) is not None


def waiting(thread: int) -> Waiting | None:
    """What `thread` waits for; None if it runs, has ended, or cannot be read."""
    words = (HERE.system_call(thread) or "").split()
    if len(words) != 9:
        return None
    number, *numbers = (int(word, 0) for word in words)
    return Waiting(number, tuple(numbers[:6]), numbers[7])


def mapped_at(library: str) -> tuple[tuple[int, int], ...]:
    """The address ranges of the code of a loaded `library`."""
    found = (it for it in HERE.mappings() if it.path == library and "x" in it.access)
    return tuple((it.start, it.end) for it in found)
