"""Where tasks in a worker process may leave a module: in files, on other hosts, in a pickle.

Python cannot remove an audit hook: worker processes alone have one, once a module is there.
"""

from __future__ import annotations

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

_WRITES = os.O_WRONLY | os.O_RDWR
_MANY = 1_000
_written: set[Any] = set()
_saved: list[bool] = []
"""Whether the tasks have saved something, copied a module or read its state."""
_threads: list[int] = []
"""That of the tasks: libraries connect workers to each other in threads of their own."""
_hooked: list[bool] = []


def watch() -> None:
    """Note, from now on, where the tasks of a batch may leave a module."""
    _written.clear()
    _saved.clear()
    _threads[:] = [get_ident()]
    _patches.apply()
    if _copied not in torch_modules.copied:
        torch_modules.copied.append(_copied)
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hear)


def rest() -> None:
    """Note it no longer."""
    _patches.undo()
    if _copied in torch_modules.copied:
        torch_modules.copied.remove(_copied)


def note_saved(*args: Any, **kwargs: Any) -> None:
    """Say that the tasks may have left a module somewhere."""
    if not _saved:
        _saved.append(True)
        probes.note_change()


def _copied(module: Any) -> None:
    note_saved()


_patches = Patches(
    [
        observe(torch, "save", before=note_saved),
        observe(torch.nn.Module, "state_dict", before=note_saved),
    ]
)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if not _patches.applied:
        return
    if event == "open":
        attempt(_opened, *args)
    elif event == "socket.connect" and _threads == [get_ident()]:
        attempt(_connected, *args)


def _connected(connection: Any, address: Any) -> None:
    if isinstance(address, tuple):  # else it is on this machine
        note_saved()


def _opened(path: Any, mode: Any, flags: Any) -> None:
    if type(path) is int or (type(path) is str and ".pyc" in path):
        return  # it was opened before, or by an import
    if type(flags) is int and flags & _WRITES and len(_written) < _MANY:
        _written.add(path)


def may_hold(size: int) -> bool:
    """Whether so many numbers may be in what the tasks have written or saved."""
    return bool(_saved) or len(_written) == _MANY or any(_has(path, size) for path in _written)


def _has(path: Any, size: int) -> bool:
    try:
        written = os.stat(path).st_size
    except OSError:  # it was moved to where it is kept
        return True
    return written >= size or not (written or path == os.devnull)
