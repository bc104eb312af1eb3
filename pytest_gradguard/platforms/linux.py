"""What only Linux has: /proc, pipes that can be widened, signals whose layout is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pytest_gradguard.platforms.base import Mapping
from pytest_gradguard.platforms.posix import Posix

_PAGE = 4096
"""What a pipe holds comes in pages; at worst each is half full."""
_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_SIGNALS_KNOWN = ("x86_64", "aarch64")
"""The machines on which `struct sigaction` is as `write_faults` has it."""


class Linux(Posix):
    """Linux, on which everything is watched."""

    name = "Linux"
    widens_pipes = has_proc = measures_gpus = True

    def makes_room(self, pipe: int, size: int) -> bool:
        import fcntl
        import termios

        unread = bytearray(4)
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
        wanted = 2 * int.from_bytes(unread, sys.byteorder) + size + 2 * _PAGE
        if wanted <= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ):
            return True
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, wanted)
        except OSError:  # more than one process may have, or all of a user's
            return False
        return True

    def opened_in(self, process: int, descriptor: int) -> str | None:
        return f"/proc/{process}/fd/{descriptor}"

    def mappings(self) -> Iterator[Mapping]:
        with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                span, access, offset, device, inode, *path = line.rstrip("\n").split(maxsplit=5)
                start, _, end = span.partition("-")
                places = int(start, 16), int(end, 16), access, int(offset, 16)
                yield Mapping(*places, device, inode, path[0] if path else "")

    def threads(self) -> set[int]:
        try:
            return {int(name) for name in os.listdir("/proc/self/task")}
        except OSError:
            return set()

    def system_call(self, thread: int) -> str | None:
        try:
            with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return None

    def futex(self) -> int | None:
        return _FUTEX.get(os.uname().machine)

    def loaded_library(self, path: str) -> Any:
        import ctypes

        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            return None

    def is_visible(self, process: int) -> bool:
        return os.path.exists(f"/proc/{process}")

    def tells_write_faults(self) -> bool:
        return os.uname().machine in _SIGNALS_KNOWN
