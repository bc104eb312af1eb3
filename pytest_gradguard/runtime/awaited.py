"""Evidence that processes write to pipes: read when findings are asked for.

A task of a pool sends notes along with its result. A process that the program starts itself has no
result, and may be killed: it tells at once.
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.noticed import Noticed

_ENOUGH = 65_536
_MANY = 16
"""How many pipes of one evidence wait unread before it is looked whether some have told."""


class Awaited(Noticed):
    """What processes that were started at one place tell, as soon as one of them has told.

    Args:
        code, call, message, details: as `Noticed` takes them.
        told: takes this evidence and what one process has told.
    """

    def __init__(
        self,
        code: str,
        call: Call,
        message: Callable[[Noticed], str],
        details: dict[str, Any],
        told: Callable[[Awaited, Any], None],
    ) -> None:
        super().__init__(code, call, message, details)
        self._told = told
        self._pipes: dict[int, Any] = {}

    def wait_for(self, pipe: int) -> None:
        """Look, from now on, whether something comes out of `pipe`, which does not block."""
        if len(self._pipes) >= _MANY:
            self._listen()
        self._pipes[pipe] = weakref.finalize(self, os.close, pipe)
        self._pipes[pipe].atexit = False  # findings are asked for at the very end

    def _listen(self) -> None:
        for pipe, close in list(self._pipes.items()):
            try:
                told = os.read(pipe, _ENOUGH)
            except BlockingIOError:
                continue
            del self._pipes[pipe]
            close()
            if told:
                self._told(self, pickle.loads(told))

    def build(self) -> Any:
        """The finding as it stands now."""
        self._listen()
        return super().build()
