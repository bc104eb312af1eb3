"""Workers that need not import torch: they are forked from a process that has done it (`warm`).

A worker of loky's, or one that multiprocessing spawns, is a new Python that the process that wants
it executes with some descriptors. `Nursery` has another process fork one instead, which runs the
same command. The process that wants it waits for its own child all the same: what is orphaned comes
to it while it asks.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

WORKERS = (
    ".popen_loky_posix",
    "from multiprocessing.spawn import",
    "from multiprocess.spawn import",
    "forkserver import",
)
"""What the command of a worker has in it."""
_AT_START = ("PYTHON", "LD_", "KERAS_")
"""How the names of environment variables begin that count as Python or a framework starts."""
_READ = ("PYTHONPATH", "PYTHONWARNINGS")
"""Those of them that count for a forked process, too: see `begin`."""
_FOR_WORKERS = ("PYTHONBREAKPOINT", "PYTHONHASHSEED")
"""Those that libraries set for their workers, and that change nothing here: one is read when it is
needed; by the other the workers hash alike, which they do where all are forked from one process."""

_HIGH = 500
"""Where descriptors are out of the way of those that a program numbers itself."""
_SET_CHILD_SUBREAPER = 36  # sys/prctl.h
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)


def starts_alike(environment: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a process that was started with one environment can run what is for the other."""
    names = {name for name in {*environment, *other} if name.startswith(_AT_START)}
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return all(environment.get(name) == other.get(name) for name in names.difference(_READ)) and (
        not any(os.path.exists(os.path.join(one, "sitecustomize.py")) for one in folders)
    )


def begin(folder: str, environment: Mapping[str, str]) -> None:
    """Be in a folder and an environment, as a process that was started there is."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    folders = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [one for one in map(os.path.abspath, folders) if one not in sys.path]
    sys.warnoptions[:] = filter(None, environment.get("PYTHONWARNINGS", "").split(","))
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]


# -- the process that wants workers ----------------------------------------------------------------


class Nursery:
    """Where workers of this process come from, in place of an executed Python.

    Args:
        connect: gives the connection to a process that runs `tend`; asked once.
        at_start: the environment that this process was started with.
    """

    def __init__(self, connect: Callable[[], socket.socket], at_start: Mapping[str, str]) -> None:
        self._connect = functools.cache(connect)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._at_start = at_start

    def serve(self) -> None:
        """Give out workers from now on."""
        executed = _posixsubprocess.fork_exec

        @functools.wraps(executed)
        def fork_exec(command: Any, path: Any, close: bool, keep: Any, *settings: Any) -> int:
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            words = [word for word in map(os.fsdecode, command) if word not in flags]
            environment = dict(os.environ)
            if settings[1] is not None:
                lines = (os.fsdecode(line).partition("=") for line in settings[1])
                environment = {name: value for name, _, value in lines}
            worker = self._start(words, keep, environment)
            return worker or executed(command, path, close, keep, *settings)

        _posixsubprocess.fork_exec = fork_exec

    def _start(
        self, command: Sequence[str], keep: Sequence[int], environment: Mapping[str, str]
    ) -> int:
        """The process that runs `command`, or 0 where Python must be executed."""
        if not self._can_run(command, environment):
            return 0
        numbers = sorted({0, 1, 2, *map(int, keep)})
        request = {
            "arguments": list(command[1:]),
            "descriptors": numbers,
            "folder": os.getcwd(),
            "environment": dict(environment),
        }
        with self._lock, _adopting():
            connection = self._connect()
            socket.send_fds(connection, [json.dumps(request).encode()], numbers)
            return int(connection.recv(100))

    def _can_run(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        return (
            os.getpid() == self._owner
            and command[0] == sys.executable
            and command[1] in ("-c", "-m")
            and any(worker in command[2] for worker in WORKERS)
            and starts_alike(_for_a_worker(environment), _for_a_worker(self._at_start))
        )


def _for_a_worker(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _FOR_WORKERS}


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """A block in which orphans among the processes below this one become its children."""
    _prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def out_of_the_way(connection: socket.socket) -> socket.socket:
    """The same connection, by a high number."""
    with connection:
        return socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _HIGH))


# -- the process that forks them -------------------------------------------------------------------


def tend(connection: socket.socket, modules: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fork a worker for each request; returns the request in it, and None when all is done.

    Args:
        connection: the other end of that of a `Nursery`.
        modules: what is imported, by name.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the connection is closed in the end
    while True:
        text, received, _, _ = socket.recv_fds(connection, 1 << 20, 250)
        if not text:
            return None
        read, write = os.pipe()
        between = os.fork()
        if not between:
            worker = os.fork()
            if worker:
                os.write(write, b"%d" % worker)
                os._exit(0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(read)
            os.close(write)
            connection.close()
            request: dict[str, Any] = json.loads(text)
            _take(received, request["descriptors"])
            is_anew(request["environment"], modules)
            return request
        os.waitpid(between, 0)  # the worker is an orphan by now, and adopted
        connection.sendall(os.read(read, 100))
        for descriptor in (read, write, *received):
            os.close(descriptor)


def _take(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Have the descriptors by the numbers that they have where they come from."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def is_anew(environment: Mapping[str, str], modules: Mapping[str, Any]) -> None:
    """Do what libraries do as they are imported in each process anew.

    Args:
        environment: that of the process.
        modules: what is imported, by name.
    """
    numpy_random = modules["numpy.random"]
    numpy_random.set_state(numpy_random.RandomState().get_state())
    modules["torch"].default_generator.seed()
    if "OMP_NUM_THREADS" in environment:
        modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
