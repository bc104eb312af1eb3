"""The options of a run."""

from __future__ import annotations

from pytest_gradguard.records import Record, record


@record
class Options(Record):
    """The user's configuration, and what other programs of the project set."""

    start_method: str = "fork"
    """The default start method of worker processes."""
    set_elsewhere: str = ""
    """The start method that another program of the project sets: it may call functions that nothing
    calls here."""
    called: frozenset[int] = frozenset()
    """Lines of functions that other programs call: their calls are analysed there."""
    loops: bool = False
    """Whether to run functions that take gradients in loops but start no workers."""
