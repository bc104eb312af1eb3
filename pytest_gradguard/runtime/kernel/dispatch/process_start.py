"""Help for starting a `Process`: its pipe for reports, and the replacement of its `run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from pytest_gradguard import imports
from pytest_gradguard.runtime.kernel import transfer
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.pipes import open_pipe
from pytest_gradguard.runtime.kernel.shipment import Shipment


def package_of(process: Any) -> str:
    """The package of `process`: `multiprocessing`, or one built like it."""
    base = next(one for one in type(process).__mro__ if one.__name__ == "BaseProcess")
    return base.__module__.partition(".")[0]


def open_connections(process: Any) -> tuple[Any, Any] | None:
    """The reading and the writing end of a pipe for `process`; see `open_pipe`."""
    connection: Any = import_module(f"{package_of(process)}.connection")
    return open_pipe(partial(connection.Pipe, duplex=False))


@contextmanager
def hearing(
    process: Any, run_in: Callable[[Any, Any], Any], hear: Callable[[Any], object]
) -> Iterator[None]:
    """A block in which `process` is started, with a pipe to report by.

    Args:
        process: the process.
        run_in: makes the replacement for its method `run`, from an earlier replacement or None, and
            the end of the pipe to report by.
        hear: called with the other end, once the process is started.
    """
    ends = open_connections(process)
    if ends is None:
        yield
        return
    read, write = ends
    try:
        with running(process, lambda inner: run_in(inner, write)):
            yield
    except BaseException:
        read.close()
        raise
    finally:
        write.close()
    hear(read)


def when_loaded(module: str, begin: Callable[[], object]) -> None:
    """Call `begin` in a started process, now or once the program has loaded `module`."""
    if module in sys.modules:
        begin()
    else:
        imports.call_after(module, partial(attempt, begin))


def ships_gradients(call: Call | None) -> bool:
    """Whether `call` has sent a process anything that may receive gradients, as far as the current
    pickling has seen."""
    current = transfer.active.transfer
    if isinstance(current, Shipment):
        current.ship_parameters()
    return call is not None and bool(call.shipped)


@contextmanager
def running(process: Any, run_in: Callable[[Any], Any]) -> Iterator[None]:
    """A block in which the method `run` of `process` is replaced.

    Args:
        process: the process.
        run_in: makes the replacement, from an earlier one or None.
    """
    before = vars(process).get("run")
    process.run = run_in(before)
    try:
        yield
    finally:
        if before is None:
            del process.run
        else:
            process.run = before
