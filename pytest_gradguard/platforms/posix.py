"""What macOS, Linux and other systems like Unix have in common."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pytest_gradguard.platforms.base import Platform

_PIPE_HOLDS = 65_536


class Posix(Platform):
    """A system with forks, signals and owners of files."""

    name = os.uname().sysname
    safe_open = os.O_NOFOLLOW | os.O_NONBLOCK
    nonblocking = os.O_NONBLOCK
    wait_functions = ("wait", "waitpid")
    task_signal = signal.SIGUSR2
    linter_start: str | None = "fork"
    forks = polls_pipes = locks_files = True

    def start_method(self, python: tuple[int, int] | None) -> str:
        """Python forks here, from 3.14 on from a server that imports the program."""
        return "forkserver" if (python or sys.version_info) >= (3, 14) else "fork"

    def at_fork(self, **functions: Callable[[], object]) -> None:
        os.register_at_fork(**functions)

    def end_group(self, process: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: all of them have ended
            os.killpg(process, signal.SIGKILL)

    @contextmanager
    def interrupts_held_back(self) -> Iterator[None]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def user(self) -> int | None:
        return os.geteuid()

    def cache_folder(self) -> str:
        return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")

    def lock(self, file: Any, *, wait: bool = True) -> bool:
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if wait:
                raise
            return False
        return True

    def lock_opened(self, file: Any) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        os.set_blocking(descriptor, blocking)

    def most_open_files(self) -> int | None:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if limit == resource.RLIM_INFINITY else limit

    def makes_room(self, pipe: int, size: int) -> bool:
        return size <= _PIPE_HOLDS
