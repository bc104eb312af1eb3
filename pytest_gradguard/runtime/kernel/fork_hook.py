"""Functions that are called around each fork of this process while they are on.

Python cannot unregister fork hooks: one that is off does nothing before a fork.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.state import dropped_at_end


class ForkHook:
    """Functions called before a fork, and after it in the parent and in the child.

    Args:
        before: called before a fork while the hook is on; the forking frame is its third outwards.
        in_parent, in_child: called after each fork, also while the hook is off.
    """

    def __init__(
        self,
        before: Callable[[], object],
        in_parent: Callable[[], object],
        in_child: Callable[[], object],
    ) -> None:
        self._functions = before, in_parent, in_child
        self._on = False
        self._registered = False
        dropped_at_end(self)

    def apply(self) -> None:
        """Turn the hook on."""
        self._on = True
        if not self._registered:
            self._registered = True
            _, in_parent, in_child = self._functions
            HERE.at_fork(
                before=self._before,
                after_in_parent=lambda: attempt(in_parent),
                after_in_child=lambda: attempt(in_child),
            )

    def clear(self) -> None:
        """Turn the hook off."""
        self._on = False

    def _before(self) -> None:
        if self._on:
            attempt(self._functions[0])
