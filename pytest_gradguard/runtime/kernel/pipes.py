"""Pipes by which processes that the program starts itself tell what they saw.

A task of a pool sends notes along with its result. A process that the program starts itself has no
result, and may be killed: it tells at once. What it told is read when somebody asks. A worker of a
library's that is about to die posts what it has seen to a mailbox.

Each message is a line of plain data (`plain_data`). A line that is nothing of the expected type is
left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel import plain_data
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.locks import Lock

_ENOUGH = 65_536
_SPARE = 32
"""How many files the program can still open where the guard opens one of its own."""


_End = TypeVar("_End", int, Any)


def ends_beside(make: Callable[[], tuple[_End, _End]]) -> tuple[_End, _End] | None:
    """Both ends of a new pipe; None where the program could hardly open more files beside it.

    None, too, where such pipes cannot be read without waiting.

    Args:
        make: makes the pipe, out of descriptors or connections.
    """
    if not HERE.polls_pipes:
        return None
    try:
        ends = make()
    except OSError as error:  # the program has as many files open as it may
        fault(error)
        return None
    if _room_beside(end if isinstance(end, int) else end.fileno() for end in ends):
        return ends
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()
    return None


def _room_beside(descriptors: Iterable[int]) -> bool:
    """Whether the program can still open files enough, now that the guard has opened these.

    A new descriptor gets the lowest number that is free.
    """
    limit = HERE.most_open_files()
    return limit is None or max(descriptors) + _SPARE < limit


def tell(pipe: int, told: Any) -> None:
    """Write `told` into a pipe, whole or not at all: nobody may be reading it."""
    data = plain_data.dumps(told).encode("ascii") + b"\n"
    HERE.set_blocking(pipe, False)
    if HERE.makes_room(pipe, len(data)):
        with suppress(BlockingIOError):
            os.write(pipe, data)


def _read(lines: bytes, kind: Any) -> Iterator[Any]:
    """The messages of type `kind` in what was written to a pipe."""
    for line in lines.splitlines():
        with suppress(ValueError):  # it is none of the guard's, or cut off
            yield plain_data.loads(line.decode("ascii"), kind)


class Line:
    """The reading end of a pipe by which one process tells again and again.

    Args:
        pipe: the connection.
        kind: the type of what the process tells.

    Attributes:
        pipe: the connection; closed once the process has ended.
    """

    def __init__(self, pipe: Any, kind: Any) -> None:
        self.pipe = pipe
        self._kind = kind
        self._unread = b""
        HERE.set_blocking(pipe.fileno(), False)

    def take(self) -> list[Any]:
        """What the process has told since this was asked last."""
        with suppress(BlockingIOError):
            while not self.pipe.closed and len(self._unread) < plain_data.LONGEST:
                told = os.read(self.pipe.fileno(), _ENOUGH)
                self._unread += told
                if not told:
                    self.pipe.close()
        whole, ends, begun = self._unread.rpartition(b"\n")
        self._unread = begun if ends or len(begun) < plain_data.LONGEST else b""
        return list(_read(whole, self._kind))


class Listeners:
    """The pipes by which several processes tell again and again, read whenever somebody asks.

    Args:
        most: from how many of them is heard at a time; the oldest go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: list[tuple[Line, int, Callable[[list[Any], bool], object]]] = []
        self._lock = Lock()  # results may be taken out of queues in several threads

    def add(self, pipe: Any, kind: Any, take: Callable[[list[Any], bool], object]) -> None:
        """Have `take` called with what a process has told, and whether it tells no more."""
        self.hear()
        with self._lock:
            self._open.append((Line(pipe, kind), os.getpid(), take))
            if len(self._open) > self._most:
                self._open.pop(0)[0].pipe.close()

    def hear(self) -> None:
        """Take what the processes have told; pipes that are at their end go."""
        with self._lock:
            for one in list(self._open):
                line, owner, take = one
                if os.getpid() == owner:
                    told = line.take()
                    if told or line.pipe.closed:
                        take(told, line.pipe.closed)
                else:  # forked, and must not take what its parent waits for
                    line.pipe.close()
                if line.pipe.closed and one in self._open:
                    self._open.remove(one)

    def close(self) -> None:
        """Hear of no process any more."""
        with self._lock:
            while self._open:
                self._open.pop()[0].pipe.close()


class Address(NamedTuple):
    """Where a process reads what others tell it, in plain values so that it can be pickled.

    Attributes:
        process, descriptor: the process, and its writing end.
        device, inode: which pipe that was; the descriptor may be another file's by now.
    """

    process: int
    descriptor: int
    device: int
    inode: int


class Mailbox:
    """A pipe of this process into which any process on this machine can write, by its address.

    For workers that a library starts, which inherit nothing, and which die before any result is
    sent. It is made when its address is asked for; only Linux has such addresses.

    Args:
        kind: the type of what they tell.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._address: Address | None = None
        self._read: int | None = None

    def address(self) -> Address | None:
        """Its address, for workers; None where there is no such thing."""
        if HERE.opened_in(0, 0) is None:
            return None
        if self._address is None or self._address.process != os.getpid():  # a fork's parent's
            read, write = os.pipe()
            HERE.set_blocking(read, False)
            about = os.fstat(write)
            self._read = read
            self._address = Address(os.getpid(), write, about.st_dev, about.st_ino)
        return self._address

    def take(self) -> list[Any]:
        """What was written into it since this was asked last."""
        if self._read is None or self._address is None or self._address.process != os.getpid():
            return []
        told = b""
        with suppress(BlockingIOError):
            while len(told) < plain_data.LONGEST:
                told += os.read(self._read, _ENOUGH)
        return list(_read(told, self._kind))

    def close(self) -> None:
        """Close the pipe, if there is one."""
        if self._read is not None and self._address is not None:
            if self._address.process == os.getpid():
                os.close(self._read)
                os.close(self._address.descriptor)
            self._read = self._address = None


def post(address: Address, told: Any) -> None:
    """Write into a mailbox; nothing, where it is closed or full."""
    path = HERE.opened_in(address.process, address.descriptor)
    if path is None:
        return
    try:
        pipe = os.open(path, os.O_WRONLY | HERE.nonblocking)
    except OSError:
        return
    try:
        about = os.fstat(pipe)
        if (about.st_dev, about.st_ino) == (address.device, address.inode):
            tell(pipe, told)
    except OSError:
        pass
    finally:
        os.close(pipe)
