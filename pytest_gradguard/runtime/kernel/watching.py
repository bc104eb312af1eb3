"""Switches the guard's patches on and off, now or as soon as the program imports a module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pytest_gradguard import imports
from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.records import fields
from pytest_gradguard.runtime.kernel import parts, patching, state
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.locks import Lock


@fields
class Watch:
    """A patch to apply once a module is imported.

    Attributes:
        module: the module's name.
        apply: called while the guard is on and the module is imported; it may be called again.
        in_workers: it is patched in worker processes only.
    """

    module: str
    apply: Callable[[], object]
    in_workers: bool


_watches: dict[str, list[Watch]] = {}
"""The watches by module name."""
_at_end: list[Callable[[], object]] = []
_before_end: list[Callable[[], object]] = []
_awaited: dict[str, Callable[[], object]] = {}
"""The callbacks for imports, by module name."""
_users: dict[object, None] = {}
"""The users: the guard is on as long as there is one."""
turn = 1
"""Incremented at each switch of the guard; patches of an earlier turn are no longer in place."""
_is_worker = False
_off = False
"""The environment disabled the guard when it was last switched on."""
_lock = Lock()


def when_imported(
    module: str,
    apply: Callable[[], object],
    *,
    in_workers: bool = False,
) -> Watch:
    """While the guard is on, call `apply` as soon as `module` is imported.

    Args:
        module: the name of the module.
        apply: puts patches in place, once, or subscribes; a fault in it becomes a warning.
        in_workers: in worker processes only.

    Returns:
        What `forget` takes.
    """
    watch = Watch(module, apply, in_workers)
    with _lock:
        _watches.setdefault(module, []).append(watch)
        if _users:
            _try(watch)
            _await_imports()
    return watch


def forget(watch: Watch) -> None:
    """Undo one `when_imported`."""
    with _lock:
        _watches[watch.module].remove(watch)


def at_end(undo: Callable[[], object]) -> None:
    """Call `undo` when the guard ends; patches, subscribers and state need none."""
    _at_end.append(undo)


def before_end(look: Callable[[], object]) -> None:
    """Call `look` whenever the guard is about to end, before its state is dropped."""
    _before_end.append(look)


def lazily(module: str) -> Callable[[], object]:
    """The function `apply` of a module of ours, imported when it is needed."""
    known: Any = None

    def apply() -> None:
        nonlocal known
        if known is None:  # not again if the program has removed its modules since
            known = import_module(module)
        known.apply()

    return apply


def start(user: object) -> None:
    """Apply the declared patches, until `stop` for the last user.

    Args:
        user: identifies who watches.
    """
    global _off, turn
    parts.load("starting").declare()
    with _lock:
        first = not _users
        _users[user] = None
        if first:
            turn += 1
            _off = attempt(is_disabled, instead=True)
            attempt(_put_in_place)


def _put_in_place() -> None:
    for watch in _all():
        _try(watch)
    _await_imports()


def stop(user: object) -> None:
    """Undo `start` for that user, which may not have completed, or have been undone already.

    The last one restores every patched name.
    """
    global turn
    with _lock:
        _users.pop(user, None)
        if not _users:
            turn += 1
            attempt(_undo_all)
            attempt(patching.undo)


@contextmanager
def paused() -> Iterator[None]:
    """A block in which every patched name is restored, for all threads."""
    global turn
    with _lock:
        users = list(_users)
        _users.clear()
        if users:
            turn += 1
            attempt(_undo_all)
    try:
        yield
    finally:
        with _lock:
            for user in users:
                start(user)


def _undo_all() -> None:
    _await_no_more()
    for look in _before_end:
        attempt(look)
    attempt(patching.undo, owned=False)
    for undo in _at_end:
        attempt(undo)
    attempt(state.drop, state.at_end)


def is_on() -> bool:
    """Whether the guard is on."""
    return bool(_users) and not _off


def has_ended() -> bool:
    """Whether the guard was on in this process, and no longer is."""
    return turn > 1 and not _users


def start_in_worker() -> None:
    """Apply the patches of this worker process, for its whole life."""
    global _is_worker
    parts.load("starting").declare()
    with _lock:
        _is_worker = True
        if _users:  # forked: most patches are in place already
            for watch in _all():
                if watch.in_workers:
                    _try(watch)
            _await_imports()
        else:
            start(__name__)


def _all() -> list[Watch]:
    return [watch for watches in _watches.values() for watch in watches]


def _wanted(watch: Watch) -> bool:
    return not _off and (_is_worker or not watch.in_workers)


def _try(watch: Watch) -> None:
    if watch.module in sys.modules and _wanted(watch):
        try:
            watch.apply()
        except Exception as error:
            fault(error)


def _await_imports() -> None:
    if not _off and not all(module in sys.modules for module in _watches):
        for module in _watches.keys() - _awaited.keys():
            _awaited[module] = functools.partial(_imported, module)
            imports.call_after(module, _awaited[module])


def _await_no_more() -> None:
    while _awaited:
        imports.forget(_awaited.popitem()[1])


def _imported(module: str) -> None:
    if _users:
        for watch in list(_watches[module]):
            _try(watch)
