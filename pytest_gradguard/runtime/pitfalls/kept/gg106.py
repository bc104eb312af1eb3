"""GG106: an optimizer steps without gradients that were left in a worker.

`kept_gradients` finds, in the worker, the copies whose gradients do not leave it;
`worker_gradients` checks, in the parent, the optimizer steps from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import times
from pytest_gradguard.runtime.kernel.registry import later
from pytest_gradguard.runtime.kernel.tasks import Task

CODE = "GG106"
PROBES = (Probe("gg106", "pytest_gradguard.runtime.pitfalls.kept.kept_gradients"),)
_NAMED = 3

on_module_returned = later(f"{__name__.rpartition('.')[0]}.worker_gradients:module_returned")


class KeptGradients(NamedTuple):
    """Gradients that a task left in its worker, picklable.

    Attributes:
        task: the function that ran.
        copies: by the digest of each tensor: whether its gradient was cleared again.
        direct: the task was the `backward` of a tensor itself.
        inherited: by the ids of tensors that a forked worker inherited: their digest, and the state
            of the gradient that they came with.
        lineage: that of the worker.
        for_inputs: the task computed gradients of its own tensors, too; those of these copies may
            be unwanted.
        clears_gradients: the task does so itself: its own are no part of the caller's.
        shared: the parameters are in shared memory, and their gradients are not.
    """

    task: Task
    copies: dict[str, bool]
    direct: bool
    inherited: dict[int, tuple[str, Any]]
    lineage: str
    for_inputs: bool
    clears_gradients: bool
    shared: bool = False


class Outcome(NamedTuple):
    """What became of the gradients that a task computed, in plain values.

    Attributes:
        left: the gradients that it left in its worker.
        returned: the digests of tensors, except parameters, whose gradients it returned.
    """

    left: KeptGradients | None
    returned: list[str]


class State(Enum):
    """What a parameter has instead of the gradient that was left in a worker."""

    MISSING = "no gradient"
    ZERO = "an all-zero gradient"
    STALE = "only the gradient from before the call"
    PENALTY = "only the gradient of a penalty term"


class Evidence(evidence.Evidence):
    """The steps of one line without gradients that were left in a worker.

    Args:
        site: the line.
        call: the call of the task that kept the gradients.
        left: the gradients that the task left.
        sent: the line where the parameters were sent to its worker; None: the program pickled them
            itself.
        by_hand: the program updates parameters itself, without an optimizer.
    """

    code = CODE

    def __init__(
        self,
        site: Site | None,
        call: Call,
        left: KeptGradients,
        sent: Site | None,
        by_hand: bool,
    ) -> None:
        task = left.task
        super().__init__(site, call.backend, direction="argument", object=task.name)
        self._task = task
        self._by_hand = by_hand
        self._shared = left.shared
        self.case = "shared memory" if left.shared else ""
        self._names: list[str] = []
        self._states: dict[State, int] = {}
        self._parameters = 0
        self._nothing = False
        text = f"copies of the parameters are sent to {self.backend} workers here"
        if left.shared:
            text = f"{self.backend} workers share the parameters from here on"
        if sent is None:
            text = "the process that gets the parameters later is started here"
        where = sent or call.site
        if where is not None:
            self.add_step(text, where.path, where.line, "parent")
        text = f"`{task.name}` runs backward on a copy and does not return the gradient"
        if left.shared:
            text = f"`{task.name}` runs backward, and the gradient stays in its process"
        self.add_step(text, task.path, task.line)

    def describe(
        self,
        lacking: Sequence[State],
        first: Details,
        names: list[str],
        parameters: int,
        nothing: bool,
    ) -> None:
        """Record what the first step here lacked.

        Args:
            lacking: what the parameters without their gradient have instead.
            first: the description of the first of them.
            names: their names in the program.
            parameters: how many the optimizer holds.
            nothing: none of them has a gradient.
        """
        self._names = sorted(names)
        self._states = {state: lacking.count(state) for state in lacking}
        self._parameters = parameters
        self._nothing = nothing
        self.details.update(
            {
                **first,
                "without_gradient": self._names,
                "function": self._task.name,
                "parameters": parameters,
                "copies": len(lacking),
                "instead": [state.value for state in self._states],
            }
        )

    def message(self) -> str:
        if self._shared:
            return (
                f"{self._harm()} `{self._task.name}` computed gradients in a {self.backend} "
                "worker, and they stayed there: the parameters are in shared memory, but their "
                "`.grad` is not."
            )
        copies = "copies of them" if self._parameters > 1 else "a copy of it"
        return (
            f"{self._harm()} `{self._task.name}` computed gradients for {copies} in a "
            f"{self.backend} worker and returned neither gradients nor parameters."
        )

    def _harm(self) -> str:
        of_all = times(self._parameters, "parameter")
        if self._nothing and not self._by_hand:
            none = f"none of its {of_all}" if self._parameters > 1 else "its one parameter has no"
            has = "has a gradient" if self._parameters > 1 else "gradient"
            return f"`optimizer.step()` updates nothing: {none} {has}."
        lacking = sum(self._states.values())
        shown = [f"`{name}`" for name in self._names[:_NAMED]]
        shown += ["…"] if len(self._names) > _NAMED else []
        instead = " or ".join(state.value for state in self._states)
        has = f"({', '.join(shown)}) {'has' if lacking == 1 else 'have'} {instead}"
        if self._by_hand:
            return (
                f"The update from `.grad` misses a gradient: {times(lacking, 'parameter')} {has}."
            )
        return f"`optimizer.step()` misses a gradient: {lacking} of its {of_all} {has}."
