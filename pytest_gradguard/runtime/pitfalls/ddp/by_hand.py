"""Collectives by which a program may average gradients itself instead of by DDP (GG502, GG505)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch.following import tensors_in
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "allgather", "_allgather_base", "all_gather_single"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "allgather_coalesced"),
    *("gather", "broadcast", "alltoall", "alltoall_base", "all_to_all_single", "send", "recv"),
)
_FUNCTIONAL = "torch.distributed._functional_collectives"
_BATCH_NORM = "torch.nn.modules._functions"
"""The module of `SyncBatchNorm`, whose backward pass reduces sums of its own."""
_DEPTH = 6
"""How many frames above a collective are searched for it."""
_READS = frozenset(name for name in _METHODS if "gather" in name) | {"send"}
"""Methods that do not change their inputs."""
Listener = Callable[[str, Any, list[Any]], object]
"""Called before a collective, with the method's name, the group and its input tensors."""
listeners: Subscribers[Listener] = Subscribers()


class _State(GuardState):
    """The collectives that the program called itself.

    Attributes:
        taken_gradients: how many got tensors that may be gradients.
        written: how many of these may have changed their inputs.
        parameters: returns the parameters whose gradients matter.
    """

    def __init__(self) -> None:
        self.taken_gradients = self.written = 0
        self.parameters: Callable[[], Iterable[Any]] = tuple


_state = dropped_at_end(_State())


def count() -> int:
    """How many collectives got tensors that may be gradients."""
    return _state.taken_gradients


def written() -> int:
    """How many of these may have changed their inputs."""
    return _state.written


def _called(name: str, group: Any, *args: Any, **kwargs: Any) -> None:
    tensors = tensors_in(args[:2])
    if listeners.now:
        given = tensors_in(args[1 if "gather" in name or "scatter" in name else 0])
        for listener in listeners.now:
            listener(name, group, given)
    if any(map(_may_be_gradient, tensors)) and not _is_batch_norm():
        _state.taken_gradients += 1
        _state.written += name not in _READS


def _may_be_gradient(tensor: Any) -> bool:
    """Whether `tensor` may hold gradients; a single number that is not a `.grad` is a loss."""
    if tensor.numel() > 1:
        return bool(tensor.is_floating_point())
    with torch._C.DisableTorchFunctionSubclass():
        place = tensor.untyped_storage().data_ptr()
        return any(
            one.grad is not None and one.grad.untyped_storage().data_ptr() == place
            for one in _state.parameters()
        )


def _is_batch_norm() -> bool:
    frame = sys._getframe(3)
    for _ in range(_DEPTH):
        if frame.f_globals.get("__name__") == _BATCH_NORM:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _resolved(*args: Any, **kwargs: Any) -> None:
    _state.taken_gradients += 1
    _state.written += 1


@functools.cache
def _collectives() -> Patches:
    group = torch.distributed.ProcessGroup
    names = [name for name in _METHODS if name in vars(group)]
    return Patches([observe(group, one, before=functools.partial(_called, one)) for one in names])


@functools.cache
def _functional() -> Patches:
    module = sys.modules[_FUNCTIONAL]
    until_2_8 = not hasattr(module, "_resolve_group")
    name = "_resolve_group_name" if until_2_8 else "_resolve_group"
    return Patches([observe(module, name, before=_resolved)])


def _listen_to_functional() -> None:
    if _collectives().applied:
        _functional().apply()


watching.when_imported(_FUNCTIONAL, _listen_to_functional)


def apply(parameters: Callable[[], Iterable[Any]]) -> None:
    """Count the collectives.

    Args:
        parameters: returns the parameters whose gradients matter; a tensor with a single number
            counts only if it is one of these gradients.
    """
    _state.parameters = parameters
    _collectives().apply()
    if _FUNCTIONAL in sys.modules:
        _functional().apply()
