"""What a process that the program starts runs in: once it joins a process group, it is guarded.

Its findings go to the process that started it, as soon as there are any and again at its end, so
that a rank that is killed loses at most its own. Nothing of the guard is imported before: most
processes never join a group.
"""

from __future__ import annotations

import sys
from importlib import import_module

from pytest_gradguard.aside import safely
from pytest_gradguard.daemon_process import through
from pytest_gradguard.imports import call_after, forget

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_RUNTIME = "pytest_gradguard.runtime"
_C10D = "torch.distributed.distributed_c10d"
_JOINS = "_update_default_pg"


class RankProcess:
    """In place of the method `run` of a process.

    Args:
        process: the process.
        inner: what stands in that place already.
        write: the end of a pipe to tell findings to.
        ignore: codes that are left out.
        forked: the process inherits the guard.
    """

    def __init__(
        self, process: Any, inner: Any, write: Any, ignore: frozenset[str], forked: bool
    ) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._ignore = ignore
        self._forked = forked
        self._rank: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._process, self._inner, self._write, self._ignore, self._forked)
        return RankProcess, arguments

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        run = work or type(self._process).run.__get__(self._process)
        run = safely(through, run, self._process, self._inner, instead=run)
        safely(self._wait)
        try:
            return run()
        except BaseException as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # the program's frames alone
            raise
        finally:
            if self._rank is not None:
                safely(self._rank.end)

    def _wait(self) -> None:
        """Wait until this process joins a group."""
        if self._forked:
            import_module(f"{_RUNTIME}.pitfalls.ddp.groups").joined.append(self._joined)
        elif _C10D in sys.modules:
            self._watch()
        else:
            call_after(_C10D, self._watch)

    def _watch(self) -> None:
        forget(self._watch)
        c10d = sys.modules[_C10D]
        original = getattr(c10d, _JOINS)

        def joining(group: Any) -> Any:
            outcome = original(group)
            if group is not None:
                setattr(c10d, _JOINS, original)  # the guard waits from now on
                safely(self._joined)
            return outcome

        setattr(c10d, _JOINS, joining)

    def _joined(self) -> None:
        """Guard what this rank does from now on."""
        if self._rank is None:
            rank = import_module(f"{_RUNTIME}.pitfalls.ddp.rank").Rank
            self._rank = rank(self._write, self._ignore, self._forked)


def is_rank(run: Any) -> bool:
    """Whether a process has joined a group, given what stands in the place of its `run`."""
    while run is not None:
        if isinstance(run, RankProcess) and run._rank is not None:
            return True
        run = getattr(run, "_inner", None)
    return False
