"""Records what joblib's own pickling transfers: to a worker, and back.

A batch of tasks and the list of its results are each pickled once, by joblib. While that pickling
runs in its thread, a `Transfer` is active there, and the reductions of tensors (see `frameworks`)
report to it: at any depth, including captures, without a search or a second pickling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pytest_gradguard.runtime.kernel import frameworks
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.framework import Transfer, active

__all__ = ["Transfer", "active", "bracketed", "during", "refusals"]

refusals: list[Callable[[BaseException, Transfer], object]] = []
"""Called with the error of a pickler, and with the transfer that it has ended."""


def bracketed(
    transfer: Transfer, rebuild: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A reduction during which `transfer` is active in this thread.

    A pickler saves `arguments` first and exhausts the (empty) iterator of list items after them:
    that is where the transfer ends, without adding a byte to the pickle.
    """
    frameworks.watch_reductions()
    active.transfer = transfer
    return (rebuild, arguments, None, iter(partial(attempt, _end, transfer), None))


@contextmanager
def during(transfer: Transfer) -> Iterator[None]:
    """A block in which `transfer` is active in this thread."""
    frameworks.watch_reductions()
    before = active.transfer
    active.transfer = transfer
    try:
        yield
    finally:
        attempt(_end, transfer)
        active.transfer = before


def _end(transfer: Transfer) -> None:
    if active.transfer is transfer:
        active.transfer = active.data = None
    transfer.ended()
