"""The native threads of this process and what they wait for, as Linux tells it.

Elsewhere, and where the kernel does not tell, nothing is known: empty answers.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from typing import NamedTuple

_FOLDER = "/proc/self/task"
_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
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
            self.number == _FUTEX.get(platform.machine())
            and bool(operation & _PRIVATE)
            and operation & 0x7F in _WAITS
        )


def ids() -> set[int]:
    """The native ids of all threads of this process."""
    if sys.platform != "linux":
        return set()
    try:
        return {int(name) for name in os.listdir(_FOLDER)}
    except OSError:
        return set()


def foreign() -> set[int]:
    """Those that are neither the calling thread nor one that Python started."""
    ours = {thread.native_id for thread in threading.enumerate()}
    return ids() - ours - {threading.get_native_id()}


def readable() -> bool:
    """Whether this system says what a thread waits for."""
    return _line(threading.get_native_id()) is not None


def waiting(thread: int) -> Waiting | None:
    """What `thread` waits for; None where it runs, has ended, or where nobody knows."""
    words = (_line(thread) or "").split()
    if len(words) != 9:
        return None
    number, *numbers = (int(word, 0) for word in words)
    return Waiting(number, tuple(numbers[:6]), numbers[7])


def _line(thread: int) -> str | None:
    try:
        with open(f"{_FOLDER}/{thread}/syscall", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def mapped_at(library: str) -> tuple[tuple[int, int], ...]:
    """Where the code of a loaded `library` stands in memory: first and last addresses."""
    parts = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.rstrip("\n").split(maxsplit=5)
                if len(words) == 6 and words[5] == library and "x" in words[1]:
                    first, _, last = words[0].partition("-")
                    parts.append((int(first, 16), int(last, 16)))
    except OSError:
        pass
    return tuple(parts)
