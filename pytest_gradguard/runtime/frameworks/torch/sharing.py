"""PyTorch's own reductions for the standard library's pickler: tensors share their memory.

They are in a table of that pickler, and replace `Tensor.__reduce_ex__`. They refuse tensors with
history. A leaf arrives as a leaf over the same memory: in-place changes are seen on both sides,
gradients are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import FRAMEWORK
from pytest_gradguard.runtime.frameworks.torch import tensors as torch_tensors
from pytest_gradguard.runtime.frameworks.torch.tensors import requires_grad
from pytest_gradguard.runtime.kernel import transfer
from pytest_gradguard.runtime.kernel.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

KINDS = (torch.Tensor, torch.nn.Parameter)
"""Subclasses of these are pickled as usual: history is dropped silently."""

_KEPT = 100_000

sent: Subscribers[Callable[[Any], object]] = Subscribers()
"""Called with each tensor that the program itself sends, by a queue or a connection."""

_shared_by_pickling: set[int] = dropped_at_end(set())
"""Storages that a pickling moved to shared memory; others were shared by the program on purpose."""


def _watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    active = transfer.active

    @functools.wraps(original)
    def reduce_tensor(tensor: Any) -> Any:
        current = active.transfer
        if current is None:
            for listener in sent.now:
                attempt(listener, tensor)
            try:
                return original(tensor)
            except BaseException as error:
                without_this_frame(error)
                raise
        shared = attempt(_is_shared, tensor, instead=True)
        try:
            reduction = original(tensor)
        except BaseException as error:
            without_this_frame(error)
            active.transfer = None  # a failed pickling has no other end
            for explain in transfer.refusals:
                attempt(explain, error, current)
            if isinstance(error, NotImplementedError):
                attempt(torch_tensors.refused, current, tensor)
            raise
        try:
            storage = _storage(tensor)
            if not shared:
                _remember(storage)
            if requires_grad(tensor):
                if isinstance(tensor, torch.nn.Parameter):
                    current.parameter(tensor, FRAMEWORK)
                elif storage in _shared_by_pickling:
                    current.tensor(tensor, reduction, FRAMEWORK)
            if torch_tensors.has_tangent(tensor):
                reduction = current.differentiated(tensor, reduction)
            if torch_tensors.on_gpu(tensor):
                return current.on_gpu(tensor, reduction, FRAMEWORK)
        except Exception as error:
            fault(error)
        return reduction

    return reduce_tensor


def _is_shared(tensor: Any) -> bool:
    """Whether its memory is shared already, or cannot be shared, as that of a sparse tensor."""
    try:
        return tensor.layout is not torch.strided or bool(tensor.is_shared())
    except Exception:  # it has no memory of its own; its pickling raises the error
        return True


def _storage(tensor: Any) -> int | None:
    if tensor.layout is not torch.strided:
        return None
    storage: int = tensor.untyped_storage()._cdata
    return storage


def _remember(storage: int | None) -> None:
    if len(_shared_by_pickling) > _KEPT:
        _shared_by_pickling.clear()
    if storage is not None:
        _shared_by_pickling.add(storage)


class Reductions:
    """The entries of the pickler's table for tensors, applied and undone like patches."""

    def __init__(self) -> None:
        self._kept: dict[type, tuple[Any, Any]] = {}

    @property
    def applied(self) -> bool:
        """Whether the reductions are wrapped."""
        return bool(self._kept)

    def apply(self) -> None:
        """Wrap the reductions of tensors, if torch has registered them."""
        table: dict[type, Any] = getattr(ForkingPickler, "_extra_reducers", {})
        for kind in KINDS:
            if kind in table and kind not in self._kept:
                mine = _watched(table[kind])
                self._kept[kind] = (table[kind], mine)
                table[kind] = mine

    def undo(self) -> None:
        """Restore the originals, unless another one was registered since."""
        table: dict[type, Any] = getattr(ForkingPickler, "_extra_reducers", {})
        for kind, (original, mine) in self._kept.items():
            if table.get(kind) is mine:
                table[kind] = original
        self._kept.clear()


reductions = Reductions()
