"""GG111: buffers updated in a worker do not come back, and the parent uses the old ones.

`kept_buffers` finds, in the worker, the buffers that have changed and do not go back;
`worker_buffers` watches, in the parent, the use of that module from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import names, times
from pytest_gradguard.runtime.kernel.quoting import quoted
from pytest_gradguard.runtime.kernel.tasks import Task

CODE = "GG111"
PROBES = (Probe("gg111", "pytest_gradguard.runtime.pitfalls.modules.kept_buffers"),)


class KeptBuffers(NamedTuple):
    """Buffers or parameters that a task left in its worker, picklable.

    Attributes:
        task: the function that ran.
        token: that of the call that the module came with, this one or an earlier one.
        number: that of the module in that call.
        path: the path of the module in the task's arguments.
        parameter: the task's parameter for it, if known.
        names: their names in the module's `state_dict`; none if a later task has returned what an
            earlier one left.
        values: the digests of some of the values that they came with, by name.
    """

    task: Task
    token: int
    number: int
    path: str
    parameter: str | None
    names: list[str]
    values: dict[str, str]


class Use(Enum):
    """What the parent does with a module whose buffers are those from before the call."""

    STEPS = "steps the module's parameters"
    EVALUATES = "evaluates the module"
    CALLS = "calls the module"
    SAVES = "saves the module"
    COPIES = "copies the module"


class Evidence(evidence.Evidence):
    """Buffers of modules that one call's tasks left in their workers.

    Attributes:
        left: what a task does, in words.
        certain: the parent has used old values; otherwise new ones may still come in time.
        stale: whether the parent still has the old values, one for each module.
    """

    code = CODE
    left = "updates buffers of its copy, and does not return them"
    certain = False
    _kept: KeptBuffers
    _uses: list[Use]

    def __init__(self, site: Site | None, backend: str, **details: Any) -> None:
        super().__init__(site, backend, **details)
        self.stale: list[Callable[[], bool]] = []

    def describe(self, kept: KeptBuffers, use: Use, line: Site | None) -> None:
        """Record what was left, and what the parent then did at `line`."""
        if not self.count:
            self._kept, self._uses = kept, []
            name, role = quoted(self.site, kept.path, kept.parameter, kept.task.name)
            self._module = name
            self.details.update(
                {
                    "framework": "torch",
                    "object": kept.path,
                    "direction": evidence.direction(kept.path),
                    "subject": ", ".join(filter(None, (name, role))),
                    "function": kept.task.name,
                    "buffers": kept.names,
                }
            )
            self.add_step(f"`{kept.task.name}` {self.left}", kept.task.path, kept.task.line)
        if use not in self._uses:
            self._uses.append(use)
            if line is not None:
                self.add_step(f"the parent {use.value} here", line.path, line.line, "parent")

    def message(self) -> str:
        task, buffers = self._kept.task.name, self._kept.names
        uses = " and ".join(use.value for use in self._uses)
        return (
            f"`{task}` updates {times(len(buffers), 'buffer')} of its copy of {self._module} in a "
            f"{self.backend} worker ({names(buffers)}) and returns none of them. The parent then "
            f"{uses}, with the buffers from before the call."
        )

    def build(self) -> Finding | None:
        if self.certain or any(stale() for stale in self.stale):
            return super().build()
        return None


Place = tuple[str, int]
"""A file and a line."""


class ReplicaEvidence(evidence.Evidence):
    """State that the replicas of one `DataParallel` have assigned and that was dropped with them.

    Args:
        site: the call of the `DataParallel` module.
        model: the class whose `forward` assigns it.
        lost: the names of the buffers and attributes, and what assigns them, if known.
    """

    code = CODE

    def __init__(self, site: Site | None, model: str, lost: Mapping[str, Place | None]) -> None:
        self._lost = list(lost)
        first = self._lost[0]
        super().__init__(site, "DataParallel", framework="torch", object=first, direction="result")
        self.details["buffers"] = self._lost
        self.advice = (
            "Register it as a buffer and write to it in place, such as by "
            f"`self.{first.rpartition('.')[2]}.copy_(…)`: the replica on the first device shares "
            "the memory of the module's buffers. `DistributedDataParallel` makes no replicas."
        )
        self._model = model
        for name, place in lost.items():
            self.add_step(f"`{name}` is assigned in a replica", *(place or (None, None)))

    def message(self) -> str:
        kept = "it keeps its old value" if len(self._lost) == 1 else "they keep their old values"
        return (
            f"`{self._model}` assigns {names(self._lost)} in its forward pass. `DataParallel` runs "
            f"that on replicas, which it drops afterwards: in the module itself {kept}."
        )
