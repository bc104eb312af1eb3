"""Processes that the program starts itself report the probes' notes there, by a pipe each.

Some notes are events. Others are states, which replace the earlier note of the same probe: they
count once the process has ended, however it ends, or at once if marked as certain.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import calls, plain_data, probes, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.pipes import Address, Listeners, Mailbox, send

FOUND = "found"
"""The name of a note with the guard's findings in the process; the others are named by probe."""
_MANY = 64
"""How many processes are read at a time."""

_Message = tuple[str, str, bool | None, int]
"""The name of a note, the note as plain data, whether it is certain (None: it is an event), and
its subject: a number of the probe's own, or 0 for the process's start."""
_Subject = tuple[str, int]
"""The name of a note, and its subject."""

# -- in the parent ---------------------------------------------------------------------------------

_listeners = Listeners(_MANY)
watching.at_end(_listeners.close)
_OfCall = tuple[int, list[tuple[str, str]], list[Finding]]
"""The token of a call, notes of probes as plain data, and findings."""
_mailbox = Mailbox(_OfCall)
_reading = Lock()
watching.at_end(_mailbox.close)


def receive() -> None:
    """Receive the reports of the processes."""
    _listeners.receive()
    with _reading:
        messages = _mailbox.take()
    for token, texts, findings in messages:
        call = calls.by_token(token)
        if call is not None:
            with suppress(ValueError):  # not the guard's data
                probes.deliver(call, probes.read(texts))
            _add(call, findings)


def address(call: Call) -> Address | None:
    """Where workers that `call` reaches through other processes report; None: nowhere."""
    call.collector.ask_first(receive)
    return _mailbox.address()


def message_of(token: int, notes: probes.Notes, found: list[Finding]) -> _OfCall:
    """What such a worker sends by `pipes.post` about the call with that token."""
    return token, [(name, plain_data.dumps(note)) for name, note in notes], found


def expect(call: Call, pipe: Any) -> None:
    """From now on, read the reports of a process that `call` starts from `pipe`."""
    _listeners.add(pipe, _Message, _Process(call).take)
    call.collector.ask_first(receive)


class _Process:
    """A process that `call` has started."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._last: dict[_Subject, Any] = {}
        self._heard: dict[_Subject, Any] = {}

    def take(self, messages: list[_Message], ended: bool) -> None:
        """Handle the messages since the last call."""
        due: dict[_Subject, Any] = {}
        for name, text, certain, about in messages:
            with suppress(ValueError):  # not the guard's data
                if name == FOUND:
                    _add(self._call, plain_data.loads(text, list[Finding]))
                elif certain is None:
                    probes.deliver(self._call, probes.read([(name, text)]))
                else:
                    ((_, note),) = probes.read([(name, text)])
                    if not about:
                        self._last[name, about] = note
                    if certain:
                        due[name, about] = note
        if ended:
            due |= self._last
        for subject, note in due.items():
            earlier = self._heard.get(subject)
            probes.replace(self._call, subject[0], note, earlier, running=not ended)
            _keep(self._heard, subject, note)


def _add(call: Call, findings: list[Finding]) -> None:
    for finding in findings:
        if finding.code not in call.dropped:
            call.collector.add(calls.placed(call, finding))


def _keep(notes: dict[_Subject, Any], subject: _Subject, note: Any) -> None:
    """Keep `note` in place of others on the subject, except that on the process's start."""
    for other in [one for one in notes if one[0] == subject[0] and one[1] not in (0, subject[1])]:
        del notes[other]
    notes[subject] = note


# -- in the process --------------------------------------------------------------------------------


class Reporter:
    """Reports the probes' notes from this process.

    Args:
        write: the end of a pipe to report by.
        process: the program's object for this process, if there is one.

    Attributes:
        here: the reporter of this process.
    """

    here: ClassVar[Reporter | None] = None

    def __init__(self, write: Any, process: Any = None) -> None:
        Reporter.here = self
        self.process = process
        self._write = write
        self._process = os.getpid()
        self._reported: dict[_Subject, Any] = {}

    def report(self, name: str, note: Any, certain: bool | None = None, about: int = 0) -> None:
        """Report a note of the probe `name`, unless an equal one was reported."""
        if os.getpid() != self._process:
            return  # forked from this process
        if certain is not None:
            if self._reported.get((name, about)) == (note, certain):
                return
            _keep(self._reported, (name, about), (note, certain))
        with suppress(OSError):  # the program has closed a file that it does not know
            send(self._write.fileno(), (name, plain_data.dumps(note), certain, about))

    def report_state(self, name: str, note: Callable[[], Any]) -> None:
        """Report the current state for the probe `name`, if there is any."""
        now = note()
        if now or (name, 0) in self._reported:
            self.report(name, now, certain=False)
