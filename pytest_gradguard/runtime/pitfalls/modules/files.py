"""Where tasks in a worker process may save a module: in files, on other hosts, in a pickle.

Python cannot remove an audit hook, so only worker processes get one, once a module has arrived.
"""

from __future__ import annotations

import functools
import os
import sys
from threading import get_ident
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import modules as torch_modules
from pytest_gradguard.runtime.kernel import probes
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end

_WRITES = os.O_WRONLY | os.O_RDWR
_MANY = 1_000


class _State(GuardState):
    """What the tasks of a batch have done.

    Attributes:
        written: the files that they have opened to write.
        saved: they have saved something, copied a module or read its state.
        thread: their thread: libraries connect workers to each other in threads of their own.
    """

    def __init__(self) -> None:
        self.written: set[Any] = set()
        self.saved = False
        self.thread = get_ident()


_state = dropped_at_end(_State())


def watch() -> None:
    """Record, from now on, where the tasks of a batch may save a module."""
    _state.clear()
    _patches.apply()
    torch_modules.copied.subscribe(_copied)
    _hook()


@functools.cache
def _hook() -> None:
    sys.addaudithook(_audit)


def unwatch() -> None:
    """Stop recording."""
    _patches.undo()
    torch_modules.copied.unsubscribe(_copied)


def note_saved(*args: Any, **kwargs: Any) -> None:
    """Record that the tasks may have saved a module somewhere."""
    if not _state.saved:
        _state.saved = True
        probes.note_change()


def _copied(module: Any) -> None:
    note_saved()


_patches = Patches(
    [
        observe(torch, "save", before=note_saved),
        observe(torch.nn.Module, "state_dict", before=note_saved),
    ]
)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _patches.applied:
        return
    if event == "open":
        attempt(_opened, *args)
    elif event == "socket.connect" and _state.thread == get_ident():
        attempt(_connected, *args)


def _connected(connection: Any, address: Any) -> None:
    if isinstance(address, tuple):  # otherwise it is on this machine
        note_saved()


def _opened(path: Any, mode: Any, flags: Any) -> None:
    if type(path) is int or (type(path) is str and ".pyc" in path):
        return  # a descriptor opened earlier, or an import
    if type(flags) is int and flags & _WRITES and len(_state.written) < _MANY:
        _state.written.add(path)


def may_hold(size: int) -> bool:
    """Whether so many numbers may be in what the tasks have written or saved."""
    written = _state.written
    return _state.saved or len(written) == _MANY or any(_has(path, size) for path in written)


def _has(path: Any, size: int) -> bool:
    try:
        written = os.stat(path).st_size
    except OSError:  # it was moved to its final place
        return True
    return written >= size or not (written or path == os.devnull)
