"""A process that the program starts itself, not by a fork, tells of stale globals: GG109.

It compares the globals that its function reads before it runs, and writes to a pipe as it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_gradguard.daemon_process import through
from pytest_gradguard.runtime import pipes
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.checks import gg109
from pytest_gradguard.runtime.dispatch.process_start import hearing
from pytest_gradguard.runtime.faults import attempt, hidden_frame

_NEEDED = tuple(name for probe in gg109.PROBES for name in probe.asks)
"""Without one of these modules, no global is compared."""


def told(process: Any, call: Call, function: Any) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; what it tells becomes evidence of `call`.

    None where there is nothing to compare.

    Args:
        process: the program's `Process`, whose arguments are pickled.
        call: the call that starts it.
        function: its function.
    """
    if "GG109" in call.dropped or not any(name in sys.modules for name in _NEEDED):
        return None
    asked = gg109.ship(call, [(function, (), {})])
    if asked is None:
        return None
    return hearing(
        process,
        lambda inner, write: Run(process, inner, write, asked, function),
        lambda: gg109.Evidence.of(call, about="process"),
    )


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
            with hidden_frame:
                return run()
        finally:
            if after is not None:
                attempt(self._tell, after)

    def _tell(self, after: Any) -> None:
        stale = after([(self._function, (), {})], None, None)
        if stale:
            states = self._asked.states
            note = [(found, states[found], there) for found, there in stale]
            pipes.tell(self._write.fileno(), note)
