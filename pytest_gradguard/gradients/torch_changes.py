"""What changes tensors or their gradients: what stands in for it while something is watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.gradients import torch_log
from pytest_gradguard.runtime.faults import fault
from pytest_gradguard.runtime.frameworks.torch import steps

_compiling = torch.compiler.is_compiling


def averaging(original: Any) -> Any:
    @functools.wraps(original)
    def update_parameters(self: Any, model: Any) -> Any:
        result = original(self, model)
        log = torch_log.log
        if log is not None:
            try:
                log.changed(torch_log.WRITTEN, list(self.parameters()), torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return update_parameters


def freezing(how: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
            result = original(self, requires_grad)
            if torch_log.log is not None and not requires_grad and not _compiling():
                try:
                    frozen = [self] if isinstance(self, torch.Tensor) else list(self.parameters())
                    torch_log.log.changed(how, frozen, torch_log.caller())
                except Exception as error:
                    fault(error)
            return result

        return requires_grad_

    return wrap


def clearing(how: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            log = torch_log.log
            if log is not None and not _compiling():
                try:
                    log.changed(how, _parameters(self), torch_log.caller())
                except Exception as error:
                    fault(error)
            return original(self, *args, **kwargs)

        return zero_grad

    return wrap


def _parameters(owner: Any) -> list[Any]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def loading(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = torch_log.log
        before = list(self.parameters()) if log is not None else []
        result = original(self, *args, **kwargs)
        if log is not None:
            try:
                kept = {id(parameter): parameter for parameter in self.parameters()}
                replaced = [parameter for parameter in before if id(parameter) not in kept]
                if replaced:
                    how = "load_state_dict(assign=True)"
                    log.changed(how, replaced, torch_log.caller())
                log.changed(torch_log.WRITTEN, kept.values(), torch_log.caller())
            except Exception as error:
                fault(error)
        return result

    return load_state_dict


def stepped(optimizer: Any) -> None:
    log = torch_log.log
    if log is not None:
        log.stepped(optimizer, steps.caller())
