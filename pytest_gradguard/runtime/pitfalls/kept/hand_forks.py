"""GG106, GG111, GG114: a process that the program forks itself, by `os.fork`.

It has no function whose end could be watched. After its first backward passes and steps it reports
its gradients and changed modules, which count as left there once it has ended. What it has written
to its parent is unknown, so only a step without any gradient counts, and a trained module does not
count as lost if the process writes as much data as the module holds.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import types
from importlib import import_module
from typing import Any, NamedTuple

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel import callsite, inherited_modules, probes
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, reporting
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.fork_hook import ForkHook
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.pipes import open_pipe
from pytest_gradguard.runtime.kernel.registry import Workers

FORKED = Workers("forked", forks=True, shares_memory=True, library="multiprocessing")
_FAMILY = "pytest_gradguard.runtime.pitfalls.kept"
_FUNCTIONS = 20
"""How many functions of the forking frame have their globals searched."""


class _Fork(NamedTuple):
    """A fork about to happen: its call, both ends of its pipe, the forking frame, and the modules
    that the child is to watch."""

    call: Call
    read: int
    write: int
    frame: types.FrameType
    asked: inherited_modules.Inherited | None


class _Forking(threading.local):
    fork: _Fork | None = None


_forking = _Forking()


def _before() -> None:
    frame = sys._getframe(3)  # outside of the hook and `attempt`
    if not callsite.is_users(frame):
        return
    call = calling.begin(FORKED)
    if call is None or "GG106" in call.dropped:
        return
    ends = open_pipe(os.pipe)
    if ends is not None:
        task = _items(frame)[0]
        asked = attempt(inherited_modules.start, call, task, True)
        _forking.fork = _Fork(call, *ends, frame, asked)


def _after(do: Any) -> None:
    fork, _forking.fork = _forking.fork, None
    if fork is not None:
        do(fork)


def _in_parent(fork: _Fork) -> None:
    os.close(fork.write)
    reporting.expect(fork.call, open(fork.read, "rb", buffering=0))  # noqa: SIM115
    import_module(f"{_FAMILY}.worker_gradients").listen()
    _waits.apply()


def _in_child(fork: _Fork) -> None:
    os.close(fork.read)
    process_gradients: Any = import_module(f"{_FAMILY}.process_gradients")
    items, reporter = _items(fork.frame), reporting.Reporter(_End(fork.write))
    process_gradients.Watched(items, reporter)
    if fork.asked is not None:
        attempt(_watch_modules, items, reporter, fork)


def _watch_modules(items: Any, reporter: Any, fork: _Fork) -> None:
    """Report, in the child, which of the inherited modules change here."""
    begun = probes.begin({inherited_modules.NAME: fork.asked}, process=True)
    stateful = probes.stateful(begun)
    if not stateful:
        return

    def look(*args: Any) -> None:
        for name, module in stateful:
            reporter.report_state(name, functools.partial(module.current_note, items))

    def leaves(item: Any) -> None:
        for _, module in stateful:
            module.on_sent(item)

    def is_written(to: Any, data: Any) -> None:
        if to != fork.write:
            leaves(bytes(data))

    anything = threading.Lock()  # an opaque object: it may contain anything
    connection: Any = sys.modules.get("multiprocessing.connection")
    probes.changed[:] = [look]
    written = [observe(os, "write", before=is_written)]
    if connection is not None:
        written.append(observe(connection.Connection, "_send_bytes", before=is_written))
    Patches([*written, observe(os, "fdopen", after=lambda *_, **__: leaves(anything))]).apply()
    tensors: Any = import_module("pytest_gradguard.runtime.frameworks.torch.tensors")
    tensors.pickled.subscribe(leaves, lasting=True)
    Patches([observe(os, "_exit", before=look)], lasting=True).apply()
    atexit.register(attempt, look)


def _has_ended(*args: Any) -> None:
    reporting.receive()


_waits = Patches([observe(os, name, after=_has_ended) for name in HERE.wait_functions])
"""Once a process has ended, its last report is final."""


class _End:
    """The writing end of a pipe, which a daemon that closes inherited files may have closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._about = os.fstat(descriptor)

    def fileno(self) -> int:
        """Its descriptor.

        Raises:
            OSError: it is closed, and may be another file's by now.
        """
        if not os.path.samestat(os.fstat(self._descriptor), self._about):
            raise OSError("closed")
        return self._descriptor


def _items(frame: types.FrameType) -> list[tuple[Any, Any, Any]]:
    """What the forked process may work on: everything the forking function can reach, as tasks."""
    code = frame.f_code.replace(co_firstlineno=frame.f_lineno)
    cells = tuple(types.CellType() for _ in code.co_freevars)
    function = types.FunctionType(code, frame.f_globals, "os.fork", None, cells)
    function.__qualname__ = "os.fork"
    values = [value for name, value in frame.f_locals.items() if not name.startswith("__")]
    functions = [value for value in values if type(value) is types.FunctionType][:_FUNCTIONS]
    held = [value for value in values if not isinstance(value, types.ModuleType)]
    return [(function, tuple(held), {}), *((one, (), {}) for one in functions)]


apply = ForkHook(
    _before, functools.partial(_after, _in_parent), functools.partial(_after, _in_child)
).apply
