"""GG106, GG111, GG114: a process that the program forks by `os.fork` itself.

It has no function whose end could be watched: after its first backward passes and steps it tells
which gradients it has and which modules it has changed, which its parent takes for left there once
it has ended. What it may have written to its parent is not known: of gradients only a step without
any counts, and a module that is trained in a process which writes as much as it holds is not lost.
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
from pytest_gradguard.runtime.kernel.dispatch import calling, telling
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.fork_hook import ForkHook
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.pipes import ends_beside
from pytest_gradguard.runtime.kernel.registry import Workers

FORKED = Workers("forked", forks=True, shares_memory=True, library="multiprocessing")
_FAMILY = "pytest_gradguard.runtime.pitfalls.kept"
_FUNCTIONS = 20
"""Of how many functions of the forking frame the globals are looked at."""


class _Fork(NamedTuple):
    """A fork that is about to happen: its call, both ends of its pipe, who forks, and which modules
    the child is to look at."""

    call: Call
    read: int
    write: int
    frame: types.FrameType
    asked: inherited_modules.Inherited | None


class _Forking(threading.local):
    fork: _Fork | None = None


_forking = _Forking()


def _before() -> None:
    frame = sys._getframe(3)  # below the hook and `attempt`
    if not callsite.is_users(frame):
        return
    call = calling.begin(FORKED)
    if call is None or "GG106" in call.dropped:
        return
    ends = ends_beside(os.pipe)
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
    telling.expect(fork.call, open(fork.read, "rb", buffering=0))  # noqa: SIM115
    import_module(f"{_FAMILY}.worker_gradients").listen()
    _waits.apply()


def _in_child(fork: _Fork) -> None:
    os.close(fork.read)
    process_gradients: Any = import_module(f"{_FAMILY}.process_gradients")
    items, teller = _items(fork.frame), telling.Teller(_End(fork.write))
    process_gradients.Watched(items, teller)
    if fork.asked is not None:
        attempt(_watch_modules, items, teller, fork)


def _watch_modules(items: Any, teller: Any, fork: _Fork) -> None:
    """Tell, in the child, which of the modules that it has inherited change here."""
    begun = probes.begin({inherited_modules.NAME: fork.asked}, process=True)
    standing = probes.standing(begun)
    if not standing:
        return

    def look(*args: Any) -> None:
        for name, module in standing:
            teller.stands(name, functools.partial(module.so_far, items))

    def leaves(item: Any) -> None:
        for _, module in standing:
            module.sent(item)

    def is_written(to: Any, data: Any) -> None:
        if to != fork.write:
            leaves(bytes(data))

    anything = threading.Lock()  # nobody can look into it
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
    telling.hear()


_waits = Patches([observe(os, name, after=_has_ended) for name in HERE.wait_functions])
"""Once a process has ended, what it told last holds."""


class _End:
    """The writing end of a pipe. A daemon closes all files that it has inherited."""

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
    """What the forked process may work on: what the forking function can reach, as tasks."""
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
