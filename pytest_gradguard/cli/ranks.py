"""``gradguard run`` in several ranks at once: one report, of what all of them have found.

Ranks of one machine share a folder, in which each keeps its findings as they come. Whoever ends
last reports all, and nobody waits for the others. A rank that fails reports at once what there is,
for its launcher is about to end the others.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gradguard.findings import Finding, merge
from pytest_gradguard.own_files import is_own, is_private_folder
from pytest_gradguard.runtime.kernel import plain_data, watching
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch

_FOLDER = "GRADGUARD_RANKS"
"""The variable by which a launcher under the guard tells its ranks where their findings go."""
_OF_THE_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "GROUP_RANK",
)
_PREFIX, _RUNS, _LOCK = "gradguard-ranks-", "*.runs", "lock"
_WANTED = ("RANK", "WORLD_SIZE", "MASTER_PORT")
_PATIENCE = 5.0
"""For how many seconds a rank waits for others to begin."""
_MOMENT = 0.3
_LEFT = 3600.0
"""After how many seconds a folder is removed that ranks have left which were killed."""
_LAUNCHER = "torch.distributed.launcher.api"


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
        number: its number.
        expected: how many there are on this machine; 0: nobody knows.
        launched: a launcher under the guard reports.
    """

    def __init__(self, folder: Path, number: int, expected: int, launched: bool) -> None:
        self.failed = False
        self._folder = folder
        self._number = number
        self._expected = expected
        self._launched = launched
        self._process = os.getpid()
        self._file = folder / f"{number}-{self._process}.findings"
        (folder / _LOCK).touch()
        with _locked(folder):
            if not launched and not any(_runs(one) for one in folder.glob(_RUNS)):
                for left in [*folder.glob("*.findings"), *folder.glob("reported")]:
                    left.unlink()  # of a run whose ranks were all killed
            self._alive = _hold(self._file.with_suffix(".runs"))

    def tell(self, findings: Sequence[Finding]) -> None:
        """Keep what was found up to now, for whoever reports."""
        if os.getpid() == self._process:
            named = [
                replace(one, details={**one.details, "ranks": [self._number]}) for one in findings
            ]
            with suppress(OSError):
                _write(self._file, named)

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
        every = _read(self._folder)
        reported = self._folder / "reported"
        known: set[Any] = set().union(*_contents(reported, frozenset[Any]))
        if running:
            _write(reported, known | {one.key for one in every})
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Said([one for one in every if one.key not in known], every)


def this_rank() -> Rank | None:
    """This process as a rank, or None where it is alone, or cannot share a folder."""
    given = os.environ.get(_FOLDER)
    numbers = [os.environ.get(name, "") for name in _WANTED]
    if not all(number.isdecimal() for number in numbers) or (int(numbers[1]) < 2 and not given):
        return None
    expected = os.environ.get("LOCAL_WORLD_SIZE", "")
    try:
        import fcntl  # noqa: F401  (Windows has no such locks)

        folder = Path(given) if given else _shared()
        if not _is_private(folder):
            return None
        return Rank(folder, int(numbers[0]), int(expected or 0), bool(given))
    except (ImportError, OSError, ValueError):  # then each reports by itself
        return None


def _shared_path() -> Path:
    """The folder of the ranks that were launched together, by this user."""
    launch = [os.environ.get(name, "") for name in _OF_THE_LAUNCH]
    key = hashlib.sha256(repr([launch, os.getppid(), _user()]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"{_PREFIX}{key}")


def _shared() -> Path:
    """That folder, once those are removed that killed ranks have left."""
    folder = _shared_path()
    for left in folder.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            old = time.time() - left.stat().st_mtime > _LEFT
            if old and _is_private(left) and not any(map(_runs, left.glob(_RUNS))):
                shutil.rmtree(left)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def _user() -> int | None:
    """The number of this user; Windows has none, and each of its users a temporary folder."""
    return os.getuid() if hasattr(os, "getuid") else None


def _is_private(folder: Path) -> bool:
    """Whether `folder` is a directory of this user's alone, and all in it are files of theirs."""
    if not is_private_folder(folder.lstat()):
        return False
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another rank has replaced it
            about = file.lstat()
            if not stat.S_ISREG(about.st_mode) or not is_own(about):
                return False
    return True


def _write(file: Path, known: Any) -> None:
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="ascii") as written:
        written.write(plain_data.dumps(known))
    new.replace(file)


def _read(folder: Path) -> list[Finding]:
    """What all ranks have found, in the order of their numbers."""
    numbered = [(one.name.partition("-")[0], one) for one in folder.glob("*.findings")]
    files = [one for _, one in sorted(numbered, key=lambda pair: (len(pair[0]), *pair))]
    kept = [found for file in files for found in _contents(file, list[Finding])]
    return merge(finding for found in kept for finding in found)


def _contents(file: Path, kind: Any) -> list[Any]:
    """What `_write` has written to `file`; nothing where it is no such file of this user's."""
    with suppress(OSError, ValueError):
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(file, os.O_RDONLY | flags), encoding="ascii") as kept:
            about = os.fstat(kept.fileno())
            if stat.S_ISREG(about.st_mode) and is_own(about):
                return [plain_data.loads(kept.read(plain_data.LONGEST + 1), kind)]
    return []


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among the ranks; FileNotFoundError: the folder has been removed."""
    import fcntl

    with open(folder / _LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hold(file: Path) -> Any:
    """Lock `file` as long as this process lives, however it ends."""
    import fcntl

    held = open(file, "a")  # noqa: SIM115
    fcntl.lockf(held, fcntl.LOCK_EX)
    return held


def _runs(file: Path) -> bool:
    """Whether the rank that holds `file` is still at work."""
    import fcntl

    with open(file, "a") as held:
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


# -- a launcher under the guard ------------------------------------------------------------------


class Launch:
    """The ranks that `torch.distributed.run`, or what stands on it, starts as programs.

    Args:
        options: of ``gradguard run``, for each of them.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)
        self._folder: str | None = None
        self._patches = LatePatches(self._make)
        watching.when_imported(_LAUNCHER, self._patches.apply, self._patches.undo)

    def _make(self) -> list[Patch]:
        return [Patch(sys.modules[_LAUNCHER].elastic_launch, "__call__", self._launching)]

    def _launching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(launch: Any, *args: Any) -> Any:
            if launch._entrypoint == os.environ.get("PYTHON_EXEC", sys.executable):
                args = self._under_guard(*args)
            return original(launch, *args)

        return __call__

    def _under_guard(self, *args: Any) -> tuple[Any, ...]:
        """The arguments of Python that run the same program under the guard."""
        flags = 1 if args and args[0] == "-u" else 0
        program = args[flags:]
        known = program and (program[0] == "-m" or not str(program[0]).startswith("-"))
        if not known or program[1:2] in (("pytest_gradguard",), ("gradguard",)):
            return args
        if self._folder is None:
            self._folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix=_PREFIX)
        return (*args[:flags], "-m", "pytest_gradguard", "run", *self._options, *program)

    def end(self, findings: Sequence[Finding]) -> list[Finding]:
        """`findings` of the launcher, and those of its ranks."""
        if self._folder is None:
            return list(findings)
        every = merge([*findings, *_read(Path(self._folder))])
        shutil.rmtree(self._folder, ignore_errors=True)
        return every
