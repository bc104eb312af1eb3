"""Processes that the program starts itself tell what the probes note there, by a pipe each.

Some notes tell of something that has happened. Others tell how things stand, and hold in place of
what the same probe told before: those count once the process has ended, by whatever ends it, or at
once where it says that they are certain.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import calls, plain_data, probes, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.pipes import Listeners, tell

FOUND = "found"
"""The name of a note of what the guard has found in the process; the others are those of probes."""
_MANY = 64
"""How many processes are listened to at a time."""

_Message = tuple[str, str, bool | None]
"""The name of a note, the note as plain data, and whether it is certain; None: it has happened."""

# -- in the parent ---------------------------------------------------------------------------------

_listeners = Listeners(_MANY)
hear = _listeners.hear
"""Take what the processes have told."""
watching.at_end(_listeners.close)


def expect(call: Call, pipe: Any) -> None:
    """Take, from now on, what comes out of `pipe`, where a process that `call` starts tells."""
    _listeners.add(pipe, _Message, _Process(call).take)
    call.collector.ask_first(hear)


class _Process:
    """A process that `call` has started."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._last: dict[str, Any] = {}
        self._heard: dict[str, Any] = {}

    def take(self, told: list[_Message], ended: bool) -> None:
        """Take what it has told since this was asked last."""
        due: dict[str, Any] = {}
        for name, text, certain in told:
            with suppress(ValueError):  # it is none of the guard's
                if name == FOUND:
                    self._add(plain_data.loads(text, list[Finding]))
                elif certain is None:
                    probes.hear(self._call, probes.read([(name, text)]))
                else:
                    ((_, note),) = probes.read([(name, text)])
                    self._last[name] = note
                    if certain:
                        due[name] = note
        for name, note in (self._last if ended else due).items():
            probes.replace(self._call, name, note, self._heard.get(name), running=not ended)
            self._heard[name] = note

    def _add(self, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.code not in self._call.dropped:
                self._call.collector.add(calls.placed(self._call, finding))


# -- in the process --------------------------------------------------------------------------------


class Teller:
    """Tells what the probes note in this process.

    Args:
        write: the end of a pipe to tell by.
    """

    def __init__(self, write: Any) -> None:
        self._write = write
        self._process = os.getpid()
        self._told: dict[str, Any] = {}

    def tell(self, name: str, note: Any, certain: bool | None = None) -> None:
        """Tell a note of the probe `name`; one that has not changed is not told again."""
        if os.getpid() != self._process:
            return  # forked from this process
        if certain is not None:
            if self._told.get(name) == (note, certain):
                return
            self._told[name] = note, certain
        with suppress(OSError):  # the program has closed what it knows nothing of
            tell(self._write.fileno(), (name, plain_data.dumps(note), certain))

    def stands(self, name: str, note: Callable[[], Any]) -> None:
        """Tell how things stand for the probe `name`, where it has anything to tell."""
        now = note()
        if now or name in self._told:
            self.tell(name, now, certain=False)
