"""What the tasks of a call say of a tape of its caller's, on its way from where they ran.

This module is light: what reads notes need not have TensorFlow.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel.evidence import Object


class Flow(enum.IntEnum):
    """What comes to a source as its gradient."""

    NONE = 0
    ZERO = 1
    SOME = 2


Key = tuple[str, tuple[int | None, ...], str]
Source = int | Key
"""A variable by its id in the parent, or, of a copy, by what it has in common with it; a tensor by
its number."""

Behind = dict[Source, Flow]
"""The sources that a tensor hangs on, and what comes to them as its gradient."""


class Made(NamedTuple):
    """A tensor that tasks hand to the parent.

    Attributes:
        tensor: it is pickled together with the results, so that it is the object the parent gets.
        sources: what a gradient would have come to through it, and which.
        sample: its description.
    """

    tensor: Any
    sources: Behind
    sample: Object


class Note(NamedTuple):
    """Observations of the tasks of a call, made where they ran.

    Attributes:
        read: the trainable variables that they read: in a thread of the parent, themselves.
        reader: the first of them, and the task's function.
        made: the tensors with something behind them.
    """

    read: list[Source]
    reader: Object | None
    made: list[Made]
