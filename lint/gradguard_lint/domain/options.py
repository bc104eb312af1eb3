"""What a program is run with."""

from __future__ import annotations

from pytest_gradguard.records import Record, record


@record
class Options(Record):
    """What the user's configuration says."""

    start_method: str = "fork"
    """How process workers start where the program does not say."""
    set_elsewhere: str = ""
    """How another program of the project lets them start: it may be the one that calls a function
    which nothing here calls."""
    called: frozenset[int] = frozenset()
    """The lines of the functions that other programs of the project call: how they are called is
    known from there."""
    loops: bool = False
    """Whether functions are run that start no workers, but take gradients in loops."""
