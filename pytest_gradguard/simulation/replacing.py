"""Names of torch's that stand for something else while the simulation is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT: Any = object()


def standing_for(kinds: tuple[Any, ...], make: Callable[..., Any]) -> Any:
    """A class in the place of the first of `kinds`, all of whose objects are its own.

    Args:
        kinds: the classes that it stands for.
        make: makes an object, called as the class is.
    """

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kinds)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, kinds)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

    return Kind(kinds[0].__name__, (), {"__module__": "torch"})


class Replacements:
    """Values put in place of others, and what stood there before."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, value: Any, *, changes: bool = False) -> None:
        """Let ``owner.name`` be `value`; it need not have had that name before.

        Args:
            changes: torch itself gives it other values meanwhile.
        """
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        mine = _ABSENT if changes else vars(owner).get(name, value)
        self._done.append((owner, name, before, mine))

    def put_all(self, owner: Any, **values: Any) -> None:
        """The same for several names of one owner."""
        for name, value in values.items():
            self.put(owner, name, value)

    def undo(self) -> None:
        """Put everything back, except where somebody else has replaced ours since."""
        for owner, name, before, mine in reversed(self._done):
            if mine is not _ABSENT and vars(owner).get(name, _ABSENT) is not mine:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._done.clear()
