"""What a process that the program starts runs in: once it joins others, it is guarded.

It does so by a process group, or by `torch.distributed.rpc`.

Its findings go to the process that started it, as soon as there are any and again at its end, so
that a rank that is killed loses at most its own. Nothing of the guard is imported before: most
processes never join others.
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
_JOINS = {_C10D: "_update_default_pg", "torch.distributed.rpc.api": "_init_rpc_states"}
"""By modules: the functions that are called as a process joins others; None leaves them."""


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
        self._watched: set[str] = set()

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
        """Wait until this process joins others."""
        if self._forked:
            import_module(f"{_RUNTIME}.pitfalls.ddp.groups").joined.append(self._joined)
        elif _C10D in sys.modules:
            self._watch()
        else:
            for module in _JOINS:
                call_after(module, self._watch)

    def _watch(self) -> None:
        for module in (_JOINS.keys() & sys.modules.keys()) - self._watched:
            self._watch_module(sys.modules[module], _JOINS[module])
            self._watched.add(module)
        if self._watched == _JOINS.keys():
            forget(self._watch)

    def _watch_module(self, module: Any, name: str) -> None:
        original = getattr(module, name, None)
        if original is None:
            return

        def joining(joined: Any) -> Any:
            outcome = original(joined)
            if joined is not None:
                setattr(module, name, original)  # the guard waits from now on
                safely(self._joined)
            return outcome

        setattr(module, name, joining)

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
