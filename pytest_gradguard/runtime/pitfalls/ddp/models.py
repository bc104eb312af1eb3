"""The state of the gradients of each DDP module, for GG502."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import engine, tensors
from pytest_gradguard.runtime.frameworks.torch.penalties import is_penalty
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.pitfalls.ddp import by_hand, gg502

State = tuple[int, int] | None
_NOTHING: Mapping[int, State] = {}
_SINK = "_DDPSinkBackward"
"""The node in which a module's reducer learns that a backward pass of its output begins."""


def _through_ddp(output: Any) -> bool:
    """Whether `output` was computed from the output of a DDP module."""
    node = tensors.grad_fn(output)
    return node is not None and any(type(one).__name__ == _SINK for one in tensors.nodes(node))


def state(parameter: Any) -> State:
    """Identifies the gradient of `parameter`, and its values."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


class Model:
    """The state of one module's gradients since the last step over its parameters.

    Attributes:
        seen: when its reducer saw the gradient of each parameter, as of the last look.
        averaged: its reducer ran, and has all gradients.
        again: another backward pass of the same forward pass came after that.
        paused: `no_sync` was used.
        resumed: a backward pass outside of `no_sync` came after that.
        backward: the first backward pass that gave it gradients without the reducer, and what the
            program calls there; None: there was none.
        ever: its reducer has averaged gradients before.
        inside: a backward pass under `no_sync` gave it gradients; checked only if `ever`.
        by_accelerate: accelerate was the last to use `no_sync`.
        exchanges: between steps, the program calls collectives itself.
        local: the counts of collectives as an optimizer first stepped with gradients that were all
            computed under `no_sync`; None: it never did.
        added: the parameters that it got after it was wrapped, once there were any.
    """

    ever = exchanges = by_accelerate = False
    local: tuple[int, int] | None = None

    def __init__(self, module: Any, forget: Callable[[Model], object]) -> None:
        weakref.finalize(module, attempt, forget, self).atexit = False
        self._reference = weakref.ref(module)
        self._reducer = module.reducer
        self._wrapped = {id(one) for one in module._module_parameters if one.requires_grad}
        self.added: Added | None = None
        self.seen = self.stats()
        self.stepped()

    @property
    def module(self) -> Any:
        """The module; None once it is being freed."""
        return self._reference()

    def stats(self) -> list[int]:
        """When the reducer saw the gradient of each parameter."""
        stats: list[int] = self._reducer.get_backward_stats()
        return stats

    def parameters(self) -> dict[int, Any]:
        """The parameters whose gradients the module averages, by id."""
        module = self.module
        every = () if module is None else module._module_parameters
        return {id(one): one for one in every if one.requires_grad and id(one) in self._wrapped}

    def parameters_since(self) -> dict[int, Any]:
        """The module's parameters that its reducer does not know, by id."""
        module = self.module
        return {
            id(one): one
            for name, one in (() if module is None else module.module.named_parameters())
            if one.requires_grad
            and id(one) not in self._wrapped
            and name not in module.parameters_to_ignore
        }

    def stepped(self) -> None:
        """Reset for the next step."""
        self.averaged = self.again = self.paused = self.resumed = self.inside = False
        self.backward: tuple[callsite.Site | None, str] | None = None
        self.before: Mapping[int, State] = _NOTHING
        self.calls = 0

    @property
    def waits(self) -> bool:
        """Whether the reducer began, and waits for gradients."""
        return self.stats() != self.seen

    @property
    def missed_backward(self) -> bool:
        """Whether the reducer had averaged already before the backward pass that just ended."""
        module = self.module
        synchronizes = module is not None and module.require_backward_grad_sync
        return self.averaged and synchronizes and any(self.seen) and not self.waits

    def look(self) -> bool:
        """Check whether the reducer ran since the last step and has all gradients."""
        seen = self.stats()
        if seen != self.seen:
            self.averaged = self._is_finished()
            if self.averaged:
                self.seen = seen
                self.ever = True
        return self.averaged

    def _is_finished(self) -> bool:
        check = getattr(self._reducer, "_check_reducer_finalized", None)
        try:
            if check is not None:
                check()
        except RuntimeError:  # the next forward pass will raise it
            return False
        return True

    def stepped_alone(self) -> bool:
        """Whether an optimizer steps now with gradients all computed under `no_sync`."""
        if self.averaged or self.backward or self.exchanges or not self.paused:
            return False
        if self.ever and not self.inside:
            return False
        if self.local is None:
            self.local = by_hand.count(), by_hand.written()
        self.exchanges = self.local[0] != by_hand.count()
        return not self.exchanges

    def is_alone(self) -> bool:
        """Whether no average includes what such steps changed."""
        return not self.exchanges and self.local is not None and self.local[1] == by_hand.written()

    def backward_ended(self, run: engine.Backward) -> None:
        """Update the state after a backward pass."""
        module = self.module
        if self.look() or module is None:
            return
        if module.static_graph and not any(self.seen):  # in its first backward it runs at the end
            self.averaged = any(map(_through_ddp, run.outputs))
        elif not module.require_backward_grad_sync:
            self.paused = True
            self.inside = self.inside or (self.ever and self._is_reached_by(run))
        else:
            self.resumed = self.paused

    def _is_reached_by(self, run: engine.Backward) -> bool:
        """Whether a backward pass gave gradients that differ between the ranks."""
        reached = {id(one) for one in run.inputs or tensors.leaves_of(run.outputs)}
        return bool(reached & self._wrapped) and not is_penalty(run.outputs)

    def cause(self, names: Mapping[int, str]) -> gg502.Cause:
        """Why the gradients were not averaged; `names` are those of the module's parameters."""
        before, now = self.seen, self.stats()
        if before == now:
            return gg502.repeated() if self.again else gg502.bypassed()
        averaged = [one for one in self.module._module_parameters if id(one) in self._wrapped]
        waits_for = zip(averaged, before, now, strict=False)
        return gg502.waiting([names.get(id(one), "") for one, was, is_ in waits_for if was == is_])

    @property
    def settled(self) -> bool:
        """Whether the next step needs no report."""
        return self.averaged or (self.paused and not self.resumed)


class Added(Model):
    """The parameters that a module got after it was wrapped."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.added = None
        self.stepped()

    @property
    def module(self) -> Any:
        return self._model.module

    def parameters(self) -> dict[int, Any]:
        return self._model.parameters_since()

    @property
    def waits(self) -> bool:
        return self._model.waits

    def look(self) -> bool:
        return False

    def backward_ended(self, run: engine.Backward) -> None:
        """Ignored: these gradients are this rank's alone, however they are computed."""

    def cause(self, names: Mapping[int, str]) -> gg502.Cause:
        frozen = {id(one) for one in self.module._module_parameters}
        return gg502.added_later(
            [names[one] for one in self.parameters()], self.parameters().keys() <= frozen
        )

    @property
    def settled(self) -> bool:
        return False
