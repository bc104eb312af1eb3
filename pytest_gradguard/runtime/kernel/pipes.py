"""Pipes by which processes that the program starts itself report to it.

A task of a pool sends notes with its result. A process that the program starts itself has no
result, and may be killed, so it reports at once; the reports are read on demand. A library's worker
that is about to die posts its reports to a mailbox.

Each message is a line of plain data (`plain_data`). A line of an unexpected type is ignored.
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
"""How many files the program must still be able to open once the guard has opened one."""


_End = TypeVar("_End", int, Any)


def open_pipe(make: Callable[[], tuple[_End, _End]]) -> tuple[_End, _End] | None:
    """Both ends of a new pipe; None if the program could hardly open more files then.

    None, too, if such pipes cannot be read without blocking.

    Args:
        make: makes the pipe, from descriptors or connections.
    """
    if not HERE.polls_pipes:
        return None
    try:
        ends = make()
    except OSError as error:  # the program has reached its limit of open files
        fault(error)
        return None
    if _has_spare_files(end if isinstance(end, int) else end.fileno() for end in ends):
        return ends
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()
    return None


def _has_spare_files(descriptors: Iterable[int]) -> bool:
    """Whether the program can still open enough files, after the guard opened these.

    A new descriptor gets the lowest free number.
    """
    limit = HERE.most_open_files()
    return limit is None or max(descriptors) + _SPARE < limit


def send(pipe: int, message: Any) -> None:
    """Write `message` into a pipe, whole or not at all: nobody may be reading it."""
    data = plain_data.dumps(message).encode("ascii") + b"\n"
    HERE.set_blocking(pipe, False)
    if HERE.makes_room(pipe, len(data)):
        with suppress(BlockingIOError):
            os.write(pipe, data)


def _read(lines: bytes, kind: Any) -> Iterator[Any]:
    """The messages of type `kind` in the contents of a pipe."""
    for line in lines.splitlines():
        with suppress(ValueError):  # not the guard's, or truncated
            yield plain_data.loads(line.decode("ascii"), kind)


class Line:
    """The reading end of a pipe by which one process reports repeatedly.

    Args:
        pipe: the connection.
        kind: the type of its reports.

    Attributes:
        pipe: the connection; closed once the process has ended.
    """

    def __init__(self, pipe: Any, kind: Any) -> None:
        self.pipe = pipe
        self._kind = kind
        self._unread = b""
        HERE.set_blocking(pipe.fileno(), False)

    def take(self) -> list[Any]:
        """The reports since the last call."""
        with suppress(BlockingIOError):
            while not self.pipe.closed and len(self._unread) < plain_data.LONGEST:
                data = os.read(self.pipe.fileno(), _ENOUGH)
                self._unread += data
                if not data:
                    self.pipe.close()
        whole, ends, begun = self._unread.rpartition(b"\n")
        self._unread = begun if ends or len(begun) < plain_data.LONGEST else b""
        return list(_read(whole, self._kind))


class Listeners:
    """The pipes by which several processes report repeatedly, read on demand.

    Args:
        most: how many of them are read at a time; the oldest are dropped.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: list[tuple[Line, int, Callable[[list[Any], bool], object]]] = []
        self._lock = Lock()  # results may be taken out of queues in several threads

    def add(self, pipe: Any, kind: Any, take: Callable[[list[Any], bool], object]) -> None:
        """Call `take` with a process's reports, and whether it has ended."""
        self.receive()
        with self._lock:
            self._open.append((Line(pipe, kind), os.getpid(), take))
            if len(self._open) > self._most:
                self._open.pop(0)[0].pipe.close()

    def receive(self) -> None:
        """Handle the processes' reports; remove pipes at their end."""
        with self._lock:
            for one in list(self._open):
                line, owner, take = one
                if os.getpid() == owner:
                    reports = line.take()
                    if reports or line.pipe.closed:
                        take(reports, line.pipe.closed)
                else:  # forked: the data is its parent's
                    line.pipe.close()
                if line.pipe.closed and one in self._open:
                    self._open.remove(one)

    def close(self) -> None:
        """Stop reading all pipes."""
        with self._lock:
            while self._open:
                self._open.pop()[0].pipe.close()


class Address(NamedTuple):
    """Where a process reads others' messages, picklable.

    Attributes:
        process, descriptor: the process, and its writing end.
        device, inode: identify the pipe; the descriptor may be another file's by now.
    """

    process: int
    descriptor: int
    device: int
    inode: int


class Mailbox:
    """A pipe of this process into which any process on this machine can write, by its address.

    For workers that a library starts, which inherit nothing, and which die before any result is
    sent. It is created when its address is requested; only Linux has such addresses.

    Args:
        kind: the type of the messages.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._address: Address | None = None
        self._read: int | None = None

    def address(self) -> Address | None:
        """Its address, for workers; None if unsupported."""
        if HERE.opened_in(0, 0) is None:
            return None
        if self._address is None or self._address.process != os.getpid():  # its parent's, in a fork
            read, write = os.pipe()
            HERE.set_blocking(read, False)
            about = os.fstat(write)
            self._read = read
            self._address = Address(os.getpid(), write, about.st_dev, about.st_ino)
        return self._address

    def take(self) -> list[Any]:
        """The messages since the last call."""
        if self._read is None or self._address is None or self._address.process != os.getpid():
            return []
        data = b""
        with suppress(BlockingIOError):
            while len(data) < plain_data.LONGEST:
                data += os.read(self._read, _ENOUGH)
        return list(_read(data, self._kind))

    def close(self) -> None:
        """Close the pipe, if there is one."""
        if self._read is not None and self._address is not None:
            if self._address.process == os.getpid():
                os.close(self._read)
                os.close(self._address.descriptor)
            self._read = self._address = None


def post(address: Address, message: Any) -> None:
    """Write into a mailbox; does nothing if it is closed or full."""
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
            send(pipe, message)
    except OSError:
        pass
    finally:
        os.close(pipe)
