"""What stands around the start of a `Process`: the pipe that it tells by, and what it runs in."""

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
from pytest_gradguard.runtime.kernel.pipes import ends_beside
from pytest_gradguard.runtime.kernel.shipment import Shipment


def package_of(process: Any) -> str:
    """The package that `process` is from: `multiprocessing`, or one that is built as that."""
    base = next(one for one in type(process).__mro__ if one.__name__ == "BaseProcess")
    return base.__module__.partition(".")[0]


def connections_beside(process: Any) -> tuple[Any, Any] | None:
    """The reading and the writing end of a pipe that `process` can be given; see `ends_beside`."""
    connection: Any = import_module(f"{package_of(process)}.connection")
    return ends_beside(partial(connection.Pipe, duplex=False))


@contextmanager
def hearing(
    process: Any, run_in: Callable[[Any, Any], Any], hear: Callable[[Any], object]
) -> Iterator[None]:
    """A block in which `process` is started, which tells by a pipe of its own.

    Args:
        process: the process.
        run_in: makes what stands in the place of its method `run`, given what stands there already,
            or None, and the end of the pipe to tell by.
        hear: takes the other end, once the process is started.
    """
    ends = connections_beside(process)
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
    """Call `begin` in a process that was started, now or once the program has loaded `module`."""
    if module in sys.modules:
        begin()
    else:
        imports.call_after(module, partial(attempt, begin))


def ships_gradients(call: Call | None) -> bool:
    """Whether `call` has given a process what may receive gradients, as far as the pickling that
    runs has seen it."""
    current = transfer.active.transfer
    if isinstance(current, Shipment):
        current.ship_parameters()
    return call is not None and bool(call.shipped)


@contextmanager
def running(process: Any, run_in: Callable[[Any], Any]) -> Iterator[None]:
    """A block in which something stands in the place of the method `run` of `process`.

    Args:
        process: the process.
        run_in: makes it, given what stands there already, or None.
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
