"""Notes on parameters that ranks of one machine share through a folder.

A note is a file: one line of JSON, then numbers. No rank waits for a note. The ranks agree on the
folder by one key in the rendezvous store; the program's process groups are not used.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import distributed_c10d

from pytest_gradguard.own_files import is_own, is_private_folder

_KEY = "gradguard/notes"
_PREFIX = "gradguard-notes-"
_LEFT = 3600.0
"""Seconds after which a folder left behind by killed ranks is removed."""
_LINE = 65_536
"""The most bytes of the first line of a note."""


class Note(NamedTuple):
    """One rank's note.

    Attributes:
        rank: its global number.
        header: plain data, as JSON allows.
        values: numbers in double precision.
    """

    rank: int
    header: dict[str, Any]
    values: Any


class Notes:
    """The notes of this rank and of the others on this machine.

    Args:
        folder: the shared folder.
        rank: the number of this one.
        ranks: how many there are on this machine.
    """

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self.rank = rank
        self._process = os.getpid()
        with suppress(OSError):
            self._ended(rank).unlink()  # it had ended, and begins again

    def _open(self) -> None:
        """Create the folder, or check that only this user can write to the existing one.

        Raises:
            PermissionError: it is a link, or others may write to it.
        """
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        if not is_private_folder(self._folder.lstat()):
            raise PermissionError(str(self._folder))

    def _ended(self, rank: int) -> Path:
        return self._folder / f"ended.{rank}"

    def write(self, subject: str, header: dict[str, Any], values: Any) -> None:
        """Write a note on `subject` for the other ranks."""
        line = json.dumps(header).encode()
        numbers = bytearray(8 * values.numel())
        if numbers:
            torch.frombuffer(numbers, dtype=torch.float64).copy_(values)
        self._open()
        file = self._folder / f"{subject}.{self.rank}"
        new = self._folder / f"new.{self.rank}"
        new.write_bytes(line + b"\n" + numbers)
        new.replace(file)

    def forget(self, subject: str) -> None:
        """Remove this rank's note on `subject`."""
        with suppress(OSError):
            (self._folder / f"{subject}.{self.rank}").unlink()

    def present(self) -> list[str]:
        """The names of all present notes, for `others`."""
        try:
            return os.listdir(self._folder)
        except OSError:
            return []

    def others(self, subject: str, count: int, present: list[str]) -> Iterator[Note]:
        """The notes of the other ranks on `subject` that have `count` numbers."""
        for name in present:
            about, _, rank = name.rpartition(".")
            if about == subject and rank.isdecimal() and int(rank) != self.rank:
                with suppress(OSError, ValueError):
                    yield _read(self._folder / name, int(rank), count)

    def end(self) -> None:
        """Record that this rank has ended; the last one removes the folder."""
        if os.getpid() != self._process:
            return
        with suppress(OSError):
            self._open()
            self._ended(self.rank).touch()
            if len(list(self._folder.glob("ended.*"))) >= self._ranks:
                shutil.rmtree(self._folder)


def _read(file: Path, rank: int, count: int) -> Note:
    """The note in `file`.

    Raises:
        ValueError: it is not a note with `count` numbers.
    """
    if file.stat().st_size > 8 * count + _LINE:
        raise ValueError(file)
    line, _, numbers = file.read_bytes().partition(b"\n")
    header = json.loads(line)
    if type(header) is not dict or len(numbers) != 8 * count:
        raise ValueError(file)
    values = torch.zeros(0, dtype=torch.float64)
    if count:
        values = torch.frombuffer(bytearray(numbers), dtype=torch.float64)
    return Note(rank, header, values)


def of_this_rank() -> Notes | None:
    """The notes of this rank; None if the ranks have no store to agree on a folder."""
    store, world = distributed_c10d._get_default_store(), distributed_c10d.get_world_size()
    if store is None or world < 2:
        return None
    root = Path(tempfile.gettempdir())
    _sweep(root)
    try:
        token = store.compare_set(_KEY, "", os.urandom(16).hex()).decode()
    except RuntimeError:  # the rank that keeps it has ended
        return None
    if len(token) != 32 or not token.isalnum():
        return None
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = min(int(here), world) if here.isdecimal() else world
    return Notes(root / f"{_PREFIX}{token}", distributed_c10d.get_rank(), ranks)


def _sweep(root: Path) -> None:
    """Remove folders left behind by killed ranks of this user."""
    for left in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = left.lstat()
            if is_own(about) and time.time() - about.st_mtime > _LEFT:
                shutil.rmtree(left)
