"""``gradguard run`` in several ranks at once: one report, of what all of them have found.

Ranks of one machine share a folder, in which each keeps its findings as they come. Whoever ends
last reports all, and nobody waits for the others. A rank that fails reports at once what there is,
for its launcher is about to end the others.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gradguard.findings import Finding
from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.pitfalls.ddp import rank_folder

_OF_THE_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "GROUP_RANK",
)
_RUNS, _LOCK = "*.runs", "lock"
_WANTED = ("RANK", "WORLD_SIZE", "MASTER_PORT")
_PATIENCE = 5.0
"""For how many seconds a rank waits for others to begin."""
_MOMENT = 0.3
_LEFT = 3600.0
"""After how many seconds a folder is removed that ranks have left which were killed."""


class Said(NamedTuple):
    """What one process is to report.

    Attributes:
        shown: what no other rank has reported yet.
        every: all findings.
    """

    shown: list[Finding]
    every: list[Finding]


class Rank:
    """This process as one of several ranks of one machine.

    Args:
        folder: what they share.
        number: its number; None: it is no rank by its environment.
        expected: how many there are on this machine; 0: nobody knows.
        launched: a launcher under the guard reports.
    """

    def __init__(self, folder: Path, number: int | None, expected: int, launched: bool) -> None:
        self.failed = False
        self._folder = folder
        self._number = number
        self._expected = expected
        self._launched = launched
        self._process = os.getpid()
        self._file = folder / f"{'' if number is None else number}-{self._process}.findings"
        (folder / _LOCK).touch()
        with _locked(folder):
            if not launched and not any(_runs(one) for one in folder.glob(_RUNS)):
                for left in [*folder.glob("*.findings"), *folder.glob("reported")]:
                    left.unlink()  # of a run whose ranks were all killed
            self._alive = _hold(self._file.with_suffix(".runs"))

    def tell(self, findings: Sequence[Finding]) -> None:
        """Keep what was found up to now, for whoever reports."""
        if os.getpid() == self._process:
            if self._number is not None:
                ranks = [self._number]
                findings = [
                    replace(one, details={**one.details, "ranks": ranks}) for one in findings
                ]
            with suppress(OSError):
                rank_folder.write(self._file, list(findings))

    def end(self, findings: Sequence[Finding]) -> Said | None:
        """What is to be reported here, where this rank ends; None: nothing, others will."""
        self.tell(findings)
        if self._launched:
            self._alive.close()
            return None
        if self.failed:
            time.sleep(_MOMENT)  # others may be where this one has just been
        until = time.monotonic() + _PATIENCE
        try:
            while True:
                with _locked(self._folder):
                    # It ends where others cannot look: they would report, and remove the folder.
                    self._alive.close()
                    files = list(self._folder.glob(_RUNS))
                    if not files:
                        return None
                    running = any(map(_runs, files))
                    all_ended = not running and len(files) >= self._expected
                    if self.failed or all_ended or (not running and time.monotonic() > until):
                        return self._report(running)
                if running:
                    return None
                time.sleep(0.05)
        except FileNotFoundError:  # another rank has reported, and removed the folder
            return None

    def _report(self, running: bool) -> Said:
        every = rank_folder.read(self._folder)
        reported = self._folder / "reported"
        known: set[Any] = set().union(*rank_folder.contents(reported, frozenset[Any]))
        if running:
            rank_folder.write(reported, known | {one.key for one in every})
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Said([one for one in every if one.key not in known], every)


def this_rank() -> Rank | None:
    """This process as a rank, or None where it is alone, or cannot share a folder."""
    given = os.environ.pop(rank_folder.VARIABLE, None)  # programs of this one get their own
    numbers = [os.environ.get(name, "") for name in _WANTED]
    is_rank = all(map(str.isdecimal, numbers)) and int(numbers[1]) > 1
    if (not is_rank and given is None) or not HERE.locks_files:
        return None
    expected = os.environ.get("LOCAL_WORLD_SIZE", "")
    try:
        folder = Path(given) if given else _shared()
        if not rank_folder.is_private(folder):
            return None
        number = int(numbers[0]) if numbers[0].isdecimal() else None
        return Rank(folder, number, int(expected or 0), given is not None)
    except (OSError, ValueError):  # then each reports by itself
        return None


def _shared_path() -> Path:
    """The folder of the ranks that were launched together, by this user."""
    launch = [os.environ.get(name, "") for name in _OF_THE_LAUNCH]
    key = hashlib.sha256(repr([launch, os.getppid(), HERE.user()]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"{rank_folder.PREFIX}{key}")


def _shared() -> Path:
    """That folder, once those are removed that killed ranks have left."""
    folder = _shared_path()
    for left in folder.parent.glob(f"{rank_folder.PREFIX}*"):
        with suppress(OSError):
            old = time.time() - left.stat().st_mtime > _LEFT
            if old and rank_folder.is_private(left) and not any(map(_runs, left.glob(_RUNS))):
                shutil.rmtree(left)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among the ranks; FileNotFoundError: the folder has been removed."""
    with open(folder / _LOCK, "rb") as lock:
        HERE.lock_opened(lock)
        yield


def _hold(file: Path) -> Any:
    """Lock `file` as long as this process lives, however it ends."""
    held = open(file, "ab")  # noqa: SIM115
    HERE.lock(held)
    return held


def _runs(file: Path) -> bool:
    """Whether the rank that holds `file` is still at work."""
    with open(file, "ab") as held:
        return not HERE.lock(held, wait=False)
