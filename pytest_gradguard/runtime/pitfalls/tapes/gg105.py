"""GG105: parallel calls around which a TensorFlow tape records, and the gradients it then gave.

`tape` has the probe; the other modules follow what tasks compute, and the gradients through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding, Severity, TraceStep
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import TENSORFLOW, Probe
from pytest_gradguard.runtime.kernel.evidence import SAMPLES, Object, direction, names

CODE = "GG105"
PROBES = (
    Probe(
        "gg105",
        "pytest_gradguard.runtime.pitfalls.tapes.tape",
        asks=(TENSORFLOW,),
        only_asked=True,
    ),
)


class Evidence(evidence.Evidence):
    """The parallel calls of one line.

    Args:
        site, backend: the line, and the kind of workers.
        tape: the recorder's class.
        label: describes an object from its description.

    Attributes:
        processes: the workers are processes.
    """

    code = CODE

    def __init__(
        self, site: Site | None, backend: str, tape: str, label: Callable[[Any], str]
    ) -> None:
        super().__init__(site, backend)
        self._tape = tape
        self._label = label
        self.processes = False
        self._asked: list[tuple[Site | None, str]] = []
        self._without: dict[str, None] = {}
        self._partial: dict[str, None] = {}
        self._times = 0

    @property
    def confirmed(self) -> bool:
        """Whether a gradient was observed to lack the workers' part."""
        return bool(self._without or self._partial)

    def asks(self, limit: int) -> bool:
        """Count a request for gradients; whether there were at most `limit` so far."""
        self._times += 1
        return self._times <= limit

    def confirm(self, site: Site | None, verb: str, without: list[str], partial: list[str]) -> None:
        """Record that the tape gave no gradient for some sources, or a part of it, at `site`.

        Args:
            site: where the gradients were requested.
            verb: the method.
            without: the names of sources without a gradient.
            partial: the names of sources that got a part of it.
        """
        self._without.update(dict.fromkeys(without))
        self._partial.update(dict.fromkeys(partial))
        steps = []
        if without:
            steps.append(f"`{verb}` gives None for {names(without)}")
        if partial:
            steps.append(f"`{verb}`: {_lacks(partial)}")
        for text in steps:
            if (site, text) not in self._asked and len(self._asked) < SAMPLES:
                self._asked.append((site, text))

    def build(self) -> Finding | None:
        self.severity = Severity.ERROR if self.confirmed else Severity.INFO
        return super().build()

    def _name_of(self, sample: Object) -> str:
        """The program's name for an object."""
        if sample.path == "result":
            return "its result"
        if direction(sample.path) == "result":
            return f"`{sample.path}`"
        return self.quoted(sample).name

    def message(self) -> str:
        first = self.samples[0]
        verb = "returns" if direction(first.path) == "result" else "computes with"
        what = f"{self._name_of(first)} ({self._label(first.description)})"
        message = (
            f"A {self._tape} is open around this call, but does not record in its {self.backend} "
            f"workers: `{first.task.name}` {verb} {what} there"
        )
        if self._without:
            message += f", and the tape gives None for {names(self._without)}"
        if self._partial:
            message += f", and {_lacks(list(self._partial))}"
        return message + "."

    def trace(self) -> Sequence[TraceStep]:
        steps: dict[TraceStep, None] = {}
        for sample in self.samples:
            task = sample.task
            if task.path is not None and task.line is not None:
                verb = "returns" if direction(sample.path) == "result" else "uses"
                text = f"`{task.name}` {verb} {self._name_of(sample)}"
                steps[TraceStep(task.path, task.line, text, lane="worker")] = None
        asked = [
            TraceStep(site.path, site.line, text, lane="parent")
            for site, text in self._asked
            if site
        ]
        return [*steps, *asked]

    def about(self) -> Details:
        first = self.samples[0]
        return {
            **first.description,
            "direction": direction(first.path),
            "object": first.path,
            "objects": [sample.path for sample in self.samples],
            "tensors": self.tensors(),
            "function": first.task.name,
            "tape": self._tape,
            "confirmed": self.confirmed,
            "without_gradient": list(self._without),
            "partial_gradient": list(self._partial),
        }


def _lacks(partial: list[str]) -> str:
    return f"the gradient of {names(partial)} lacks the part from the workers"
