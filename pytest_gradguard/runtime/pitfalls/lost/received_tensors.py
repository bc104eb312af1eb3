"""Adds a note to the error of a tensor whose sending process has ended.

torch sends a tensor as a handle to shared memory, which the sender has to keep open.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import error_notes
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch

_LOST = (
    "The process that sent this tensor has ended. On a queue or pipe, a tensor is a handle to "
    "shared memory that its sender keeps open. Keep the sender alive until the tensor has arrived "
    "(for example with a `multiprocessing.Event` that it waits for), send `tensor.numpy()`, which "
    'is copied, or call `torch.multiprocessing.set_sharing_strategy("file_system")` first.'
)


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `torch.multiprocessing.reductions`."""
    return [
        observe(module, name, failed=_refused)
        for name in ("rebuild_storage_fd", "rebuild_storage_filename")
        if hasattr(module, name)
    ]


def _refused(error: BaseException, *args: Any, **kwargs: Any) -> None:
    if isinstance(error, Exception) and _tells_of_the_sender(error):
        error_notes.add(error, _LOST)


def _tells_of_the_sender(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return "unable to open shared memory object" in str(error)
    return isinstance(error, (ConnectionError, FileNotFoundError, EOFError))
