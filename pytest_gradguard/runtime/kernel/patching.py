"""Patches of names, one object each: idempotent, undoable, and careful with others' patches."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.locks import Lock

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])

_lock = Lock()


def on_class(original: Any, kind: type) -> Callable[..., Any]:
    """The value of `kind.name` if `original` is the raw attribute of that name in the class.

    It works for instance, class and static methods, written in Python or in C: a `wrap` that calls
    such a method need not know its kind, which changes between versions of a library.
    """
    bound: Callable[..., Any] = original.__get__(None, kind)
    return bound


def not_counted(wrapper: Wrapper) -> Wrapper:
    """Have `warnings` skip the frames of `wrapper` as it counts to a ``stacklevel``.

    A warning of the wrapped function is then attributed to the same line as without us. Python
    skips the frames of its import system, which it recognizes by their file.
    """
    function: Any = wrapper
    code = function.__code__
    function.__code__ = code.replace(
        co_filename=f"<frozen importlib._bootstrap> {code.co_filename}"
    )
    return wrapper


class Patch:
    """Replaces one attribute by a wrapper of it.

    Args:
        owner: the class or module that holds the attribute.
        name: its name.
        wrap: makes the replacement from the original.
        inherited: the attribute may be that of a base class of the owner.

    Attributes:
        mine: the replacement, while it is applied.
    """

    def __init__(
        self, owner: Any, name: str, wrap: Callable[[Any], Any], *, inherited: bool = False
    ) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._inherited = inherited
        self._original: Any = None
        self.mine: Any = None
        self._own = True

    def apply(self) -> None:
        """Put the wrapper in place, once.

        Raises:
            AttributeError: the owner has no such attribute (of its own).
            RuntimeError: there is no wrapper.
        """
        if self.mine is not None:
            return
        holders = (self._owner, *(self._owner.__mro__[1:] if self._inherited else ()))
        holder = next((one for one in holders if self._name in vars(one)), None)
        if holder is None:
            raise AttributeError(f"{self._owner!r} has no {self._name!r} of its own")
        self._own = holder is self._owner
        original = vars(holder)[self._name]
        if not self._own and (isinstance(original, types.FunctionType) or holder is object):
            original = _following(self._owner, self._name, original)
        mine = self._wrap(original)
        if mine is None and original is not None:
            raise RuntimeError(f"there is nothing to put in the place of {self._name!r}")
        self._original, self.mine = original, mine
        setattr(self._owner, self._name, mine)

    def undo(self) -> None:
        """Restore the original, unless another wrapper was put on ours, which is then kept.

        If the other wrapper is gradguard's too, its own undo restores our original.
        """
        if self.mine is None:
            return
        if vars(self._owner).get(self._name) is self.mine:
            original = self._original
            while isinstance(original, types.FunctionType) and original in _buried:
                original = _buried[original]
            if self._own:
                setattr(self._owner, self._name, original)
            else:
                delattr(self._owner, self._name)
        elif isinstance(self.mine, types.FunctionType):
            _buried[self.mine] = self._original
        self._original = self.mine = None


def _following(owner: type, name: str, original: Any) -> Any:
    """A function that calls what `owner` inherits as `name` at the time of each call.

    That may be another base class's, in a subclass with several; and the program may have replaced
    `original` since.
    """

    @functools.wraps(original)
    def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(super(owner, self), name)(*args, **kwargs)
        except BaseException as error:  # written out: each pickled module passes here
            without_this_frame(error)
            raise

    return inherited


_buried: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The originals below wrappers that were undone while covered by another one."""


_in_place: dict[Patches, None] = {}
"""The applied patches to undo when the guard ends, in the order of application."""


def undo(*, owned: bool = True) -> None:
    """Undo the applied patches, the last first.

    Args:
        owned: include remaining owned patches, which a failure has left in place.
    """
    for patches in reversed(list(_in_place)):
        if owned or not patches.owned:
            attempt(patches.undo)


class Patches:
    """Several patches as one: applied all or none, undone in reverse.

    Args:
        patches: the patches.
        lasting: they may stay in place when the guard ends.
        owned: whoever applies them undoes them, before that.
    """

    def __init__(self, patches: list[Patch], *, lasting: bool = False, owned: bool = False) -> None:
        self.owned = owned
        self._patches = patches
        self._lasting = lasting
        self.applied = False

    def apply(self) -> None:
        """Apply all; if one fails, undo the others.

        Raises:
            AttributeError, RuntimeError: of the patch that failed.
        """
        if self.applied:
            return
        with _lock:
            if self.applied:
                return
            done: list[Patch] = []
            try:
                for patch in self._patches:
                    done.append(patch)
                    patch.apply()
            except BaseException:
                for patch in reversed(done):
                    attempt(patch.undo)
                raise
            self.applied = True
            if not self._lasting:
                _in_place[self] = None

    def wrappers(self) -> list[Any]:
        """The wrappers of all patches, while they are applied."""
        return [patch.mine for patch in self._patches]

    def undo(self) -> None:
        """Undo all."""
        with _lock:
            if self.applied:
                self.applied = False
                _in_place.pop(self, None)
                for patch in reversed(self._patches):
                    attempt(patch.undo)


class LatePatches:
    """Patches of a module that may be loaded later: created once, when it is loaded.

    Args:
        make: creates them; returns none, and is called again, if the module is not loaded or has an
            unknown layout.
        lasting, owned: as for `Patches`.
    """

    def __init__(
        self, make: Callable[[], list[Patch]], *, lasting: bool = False, owned: bool = False
    ) -> None:
        self._make = make
        self._lasting = lasting
        self._owned = owned
        self._patches: Patches | None = None

    @property
    def applied(self) -> bool:
        """Whether they were created and are in place."""
        return self._patches is not None and self._patches.applied

    def apply(self) -> None:
        """Apply them, if they can be created."""
        if self._patches is None:
            made = self._make()
            if not made:
                return
            self._patches = Patches(made, lasting=self._lasting, owned=self._owned)
        self._patches.apply()

    def undo(self) -> None:
        """Undo them, if they were created."""
        if self._patches is not None:
            self._patches.undo()
