"""A process that the program starts itself, not by a fork, tells of stale globals: GG109.

It compares the globals that its function reads before it runs, and writes to a pipe as it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard.daemon_process import through
from pytest_gradguard.runtime import pipes
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.checks import gg109
from pytest_gradguard.runtime.dispatch.process_start import connections_beside, running
from pytest_gradguard.runtime.faults import attempt, without_this_frame

_NEEDED = tuple(name for probe in gg109.PROBES for name in probe.asks)
"""Without one of these modules, no global is compared."""


@contextmanager
def told(process: Any, call: Call, function: Any) -> Iterator[None]:
    """A block in which `process` is started; what it tells becomes evidence of `call`.

    Args:
        process: the program's `Process`, whose arguments are pickled.
        call: the call that starts it.
        function: its function.
    """
    asked = None
    if "GG109" not in call.dropped and any(name in sys.modules for name in _NEEDED):
        asked = gg109.ship(call, [(function, (), {})])
    ends = None if asked is None else connections_beside(process)
    if asked is None or ends is None:
        yield
        return
    read, write = ends
    try:
        with running(process, lambda inner: Run(process, inner, write, asked, function)):
            yield
    finally:
        write.close()
        evidence = gg109.Evidence.of(call, about="process")
        if evidence is not None:
            evidence.wait_for(os.dup(read.fileno()))
        read.close()


class Run:
    """In place of the method `run` of a process.

    Args:
        process: the process.
        inner: what stands in that place already.
        write: the end of a pipe to tell it to.
        asked: the globals that its function reads, as they are in the parent.
        function: its function.
    """

    def __init__(
        self, process: Any, inner: Any, write: Any, asked: gg109.Asked, function: Any
    ) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._asked = asked
        self._function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self._process, self._inner, self._write, self._asked, self._function)

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        run = work or type(self._process).run.__get__(self._process)
        run = attempt(through, run, self._process, self._inner, instead=run)
        after = attempt(gg109.begin, self._asked, True)
        try:
            return run()
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            if after is not None:
                attempt(self._tell, after)

    def _tell(self, after: Any) -> None:
        stale = after([(self._function, (), {})], None, None)
        if stale:
            states = self._asked.states
            note = [(found, states[found], there) for found, there in stale]
            pipes.tell(self._write.fileno(), note)
