"""GG106: models that arrive in a running process: by a pipe, queue, manager or file.

The models of one message are followed in the thread that unpickles it: which of them get a gradient
there, and what the thread then sends, until its next message. What a task loads counts as part of
its arguments.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import arrivals
from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch.copies import Copies
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.pitfalls.kept import backwards, returned

_ENOUGH = 64
"""How many leaves are kept, at least, before dead ones are removed."""


class Message:
    """The leaves that have arrived in one thread since its last answer.

    Attributes:
        number: distinguishes it from the others of this process.
        copies: the leaves at the first backward pass since then, and later ones.
        answered: the thread has sent something since the last backward pass.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.copies: Copies | None = None
        self.answered = False
        self._leaves: list[Reference] = []
        self._enough = _ENOUGH

    def add(self, leaf: Any) -> None:
        """Add a leaf that has arrived."""
        if len(self._leaves) >= self._enough:
            self._leaves = [one for one in self._leaves if one() is not None]
            self._enough = max(_ENOUGH, 2 * len(self._leaves))
        self._leaves.append(refer(leaf, lasting=True))

    def take(self) -> Copies | None:
        """Return its copies, as a backward pass begins."""
        leaves = [one for reference in self._leaves if (one := reference()) is not None]
        self._leaves.clear()
        if self.copies is None and leaves:
            self.copies = Copies((), shared=True)
        if self.copies is not None:
            self.copies.add(leaves)
        return self.copies


class Arrived:
    """The messages of this process.

    Args:
        tell: gets the number and the copies of each message whose gradients may be left here.
    """

    def __init__(self, tell: Callable[[int, Copies], object]) -> None:
        self._tell = tell
        self._messages: dict[int, Message] = {}
        self._numbers = itertools.count(1)
        arrivals.subscribe(self._arrives, lasting=True)
        torch_engine.subscribe(self._backward, lasting=True)

    def _arrives(self, leaf: Any, rebuilding: FrameType) -> None:
        thread = threading.get_ident()
        message = self._messages.get(thread)
        if message is None or message.answered:
            message = self._messages[thread] = Message(next(self._numbers))
        message.add(leaf)

    def _backward(self, backward: torch_engine.Backward) -> torch_engine.End | None:
        message = self._messages.get(threading.get_ident())
        copies = message.take() if message is not None and backward.accumulates else None
        if message is None or copies is None:
            return None
        message.answered = False

        def ended(_: Any, raised: BaseException | None) -> None:
            if raised is None:
                copies.backward_ended(backward.outputs)

        return ended

    def sent(self, item: Any) -> None:
        """Record an item that this thread sends to another process."""
        message = self._messages.get(threading.get_ident())
        if message is not None and message.copies is not None and message.copies.passes:
            returned.record_sent(message.copies, item)
            message.answered = True
            self._tell(message.number, message.copies)

    def pickled(self, tensor: Any) -> None:
        """Record a tensor that the program pickles, to a file or otherwise."""
        for message in list(self._messages.values()):
            if message.copies is not None:
                message.copies.written(tensor)

    def ended(self) -> None:
        """Report unanswered messages, as the process ends."""
        for message in list(self._messages.values()):
            if message.copies is not None and message.copies.passes and not message.answered:
                message.copies.ended()
                self._tell(message.number, message.copies)


# -- in a worker that runs tasks -------------------------------------------------------------------


def _loaded(leaf: Any, rebuilding: FrameType) -> None:
    backwards.load(leaf)


def apply() -> None:
    """Record, from now on, what the tasks of this worker load."""
    arrivals.subscribe(_loaded)
