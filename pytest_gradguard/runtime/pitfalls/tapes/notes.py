"""Notes on the tasks of a call for its caller's tape, sent from where they ran.

This module is light: reading notes does not need TensorFlow.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel.evidence import Object


class Flow(enum.IntEnum):
    """The gradient that reaches a source."""

    NONE = 0
    ZERO = 1
    SOME = 2


Key = tuple[str, tuple[int | None, ...], str]
Source = int | Key
"""A variable by its id in the parent, or its copy by the key that they share; a tensor by its
number."""

Behind = dict[Source, Flow]
"""The sources that a tensor depends on, and the gradient that reaches each."""


class Made(NamedTuple):
    """A tensor that tasks hand to the parent.

    Attributes:
        tensor: pickled together with the results, so that it is the object the parent gets.
        sources: the sources that a gradient would have reached through it.
        sample: its description.
    """

    tensor: Any
    sources: Behind
    sample: Object


class Note(NamedTuple):
    """Observations of the tasks of a call, made where they ran.

    Attributes:
        read: the trainable variables that they read; in a thread of the parent, the objects.
        reader: the first of them, and the task's function.
        made: the tensors that depend on sources.
    """

    read: list[Source]
    reader: Object | None
    made: list[Made]
