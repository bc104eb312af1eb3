"""Wrappers that record changes of tensors and gradients: freezing, clearing, loading."""

from __future__ import annotations

import functools
from typing import Any

import torch

from pytest_gradguard.gradients import torch_records
from pytest_gradguard.gradients.torch_log import Log, noted, recorder
from pytest_gradguard.runtime.frameworks.torch import steps
from pytest_gradguard.runtime.kernel.observing import caller, observed


@noted
def averaging(log: Log, frame: Any, _: Any, self: Any, model: Any) -> None:
    """`AveragedModel.update_parameters`."""
    log.changed(torch_records.WRITTEN, list(self.parameters()), frame)


@noted
def freezing(log: Log, frame: Any, _: Any, self: Any, requires_grad: bool = True) -> None:
    """`requires_grad_` of a tensor or module."""
    if not requires_grad:
        frozen = [self] if isinstance(self, torch.Tensor) else list(self.parameters())
        log.changed(torch_records.FROZEN, frozen, frame)


@functools.partial(noted, before=True)
def clearing(log: Log, frame: Any, _: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """`zero_grad` of a module or optimizer."""
    log.look_at_gradients()
    log.changed("zero_grad()", steps.parameters_of(self), frame)


@noted
def distributed_backward(log: Log, _: Any, __: Any, *args: Any, **kwargs: Any) -> None:
    """`backward` of distributed autograd, which keeps its gradients in a context."""
    context = args[0] if args else kwargs["contextId"]
    log.distributed_backward_ended(torch._C._distributed_autograd.get_gradients(context))


@noted
def distributed_gradients(log: Log, _: Any, gradients: Any, *args: Any, **kwargs: Any) -> None:
    """`get_gradients`, which returns the gradients of such a context."""
    for listener in list(log.listeners):
        listener.after_backward(tuple(gradients), tuple(gradients.values()))


def _loads(module: Any, *args: Any, **kwargs: Any) -> tuple[Log, list[Any]] | None:
    log = recorder.log
    return None if log is None else (log, list(module.parameters()))


def _loaded(
    begun: tuple[Log, list[Any]], result: Any, module: Any, *args: Any, **kwargs: Any
) -> None:
    log, before = begun
    state: Any = args[0] if args else kwargs.get("state_dict")
    for name, parameter in module.named_parameters():
        log.goes_on(state.get(name), parameter)
    kept = {id(parameter): parameter for parameter in module.parameters()}
    replaced = [parameter for parameter in before if id(parameter) not in kept]
    if replaced:
        log.changed("load_state_dict(assign=True)", replaced, caller())
    log.changed(torch_records.WRITTEN, kept.values(), caller())


loading = observed(before=_loads, after=_loaded)
"""`load_state_dict`, which writes to parameters or replaces them."""


def stepped(optimizer: Any) -> None:
    """Record a step of `optimizer`."""
    log = recorder.log
    if log is not None:
        log.stepped(optimizer, steps.caller())
