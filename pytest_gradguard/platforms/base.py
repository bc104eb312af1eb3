"""What each platform can do, and the answers of one that can do none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple


class Mapping(NamedTuple):
    """A part of this process's memory that is mapped from a file.

    Attributes:
        start, end: its addresses.
        access: what is allowed, as ``"r-xp"``.
        offset: where it begins in the file.
        device, inode: which file that is.
        path: the path of the file; "" where it has none.
    """

    start: int
    end: int
    access: str
    offset: int
    device: str
    inode: str
    path: str


class Platform:
    """A platform without anything that not all platforms have.

    Attributes:
        name: what people call it.
        forks: whether a process can be forked.
        safe_open: flags of `os.open` that follow no link and wait for no pipe.
        nonblocking: the flag of `os.open` that waits for no pipe.
        wait_functions: the functions of `os` that wait for a child process.
        task_signal: the signal that interrupts a task of ours that waits forever; None: there is
            no spare one.
        linter_start: how the linter's worker processes start; None: by default.
        polls_pipes: whether a pipe can be asked what is in it without waiting.
        widens_pipes: whether a pipe can be made to hold more.
        locks_files: whether `lock` works.
        has_proc: whether it says what threads wait for, and what is mapped into memory.
        measures_gpus: whether NVIDIA's driver says how much memory a process takes.
        may_have_mps: whether torch may compute on a GPU of Apple's.
    """

    name = "this platform"
    safe_open = nonblocking = 0
    wait_functions: Sequence[str] = ()
    task_signal: int | None = None
    linter_start: str | None = None
    forks = polls_pipes = widens_pipes = locks_files = False
    has_proc = measures_gpus = may_have_mps = False

    def missing(self) -> list[str]:
        """What gradguard cannot do here, or need not, in one line each."""
        limits = (
            (self.forks, "GG203, GG303: no process is forked, so neither can happen"),
            (
                self.has_proc or not self.forks,
                "GG303: a forked worker that waits for torch's compute threads is not seen",
            ),
            (self.has_proc, "GG506: ranks that step the same shared memory are not recognised"),
            (
                self.polls_pipes,
                "GG106, GG111, GG114, GG201, GG206: nothing is reported from a `Process` that the "
                "program starts by itself",
            ),
            (
                self.widens_pipes or not self.polls_pipes,
                "a process that the program starts by itself reports at most 64 KiB at a time",
            ),
            (self.measures_gpus, "GG201: the GPU memory of the workers is not measured"),
            (
                self.tells_write_faults(),
                "GG306: a worker that is killed by a write to read-only memory is not reported",
            ),
            (self.locks_files, "`gradguard run` in several ranks: each rank reports by itself"),
            (
                self.task_signal is not None,
                "`--gradguard-compare`: a task that waits forever is not interrupted",
            ),
        )
        return [line for there, line in limits if not there]

    # -- processes ----------------------------------------------------------------------------

    def start_method(self, python: tuple[int, int] | None) -> str:
        """How processes start by default in that version of Python; None: the running one."""
        return "spawn"

    def at_fork(self, **functions: Callable[[], object]) -> None:
        """`os.register_at_fork`."""

    def end_group(self, process: int) -> None:
        """Kill the processes of the group that `process` leads."""

    def interrupts_held_back(self) -> AbstractContextManager[object]:
        """A block in which Ctrl-C waits for the end, also in processes started there."""
        return nullcontext()

    # -- users and files ----------------------------------------------------------------------

    def user(self) -> int | None:
        """The number of this user; None where users have none."""
        return None

    def cache_folder(self) -> str:
        """Where a user's programs keep their caches; maybe no absolute path."""
        return ""

    def lock(self, file: Any, *, wait: bool = True) -> bool:
        """Lock an open file for this process, until it is closed; whether that succeeded."""
        raise NotImplementedError

    def lock_opened(self, file: Any) -> None:
        """Wait for a lock that each opening of a file has for itself; nothing without locks."""

    # -- pipes --------------------------------------------------------------------------------

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        """`os.set_blocking`."""

    def most_open_files(self) -> int | None:
        """How many files a process may have open; None: no limit is known."""
        return None

    def makes_room(self, pipe: int, size: int) -> bool:
        """Whether `size` bytes can be written into a pipe at once, which may be widened."""
        return False

    def opened_in(self, process: int, descriptor: int) -> str | None:
        """The path of an open file of another process; None if the platform has no such paths."""
        return None

    # -- memory, threads and signals ------------------------------------------------------------

    def mappings(self) -> Iterable[Mapping]:
        """The memory mappings of this process; empty if they are unknown."""
        return ()

    def threads(self) -> set[int]:
        """The native ids of this process's threads; empty where they are not known."""
        return set()

    def system_call(self, thread: int) -> str | None:
        """The system call that a thread waits in, as Linux prints it; None if unknown."""
        return None

    def futex(self) -> int | None:
        """The number of the system call by which threads wait for each other."""
        return None

    def loaded_library(self, path: str) -> Any:
        """The shared library at `path`, where it is loaded already; else None."""
        return None

    def is_visible(self, process: int) -> bool:
        """Whether a process with that number can be seen from here."""
        return True

    def tells_write_faults(self) -> bool:
        """Whether a signal tells the address of a write to read-only memory, laid out as known."""
        return False
