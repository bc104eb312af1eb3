"""GG103: a backward pass gives its gradient to results whose graph was dropped.

`provenance` tracks these results and the backward passes that reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Severity, TraceStep
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import SAMPLES, Object, names, times

CODE = "GG103"
PROBES = (Probe("gg103", "pytest_gradguard.runtime.pitfalls.lost.process_results"),)
FIXED = "fixed parameters"


class Sent(NamedTuple):
    """A tensor with a graph that was pickled, itself picklable.

    Attributes:
        values: its digest.
        note: its description.
        handed: it went through a queue, a connection or a manager.
        leaves: the digests of the leaves behind it, by id: a forked process may have inherited
            them, and others may have arrived as copies.
        lineage: that of the process.
    """

    values: str
    note: Object
    handed: bool
    leaves: dict[int, str]
    lineage: str


def case_of(call: Any) -> str:
    """The case of the catalogue's advice that fits the workers of `call`."""
    # Threads lack the caller's transform, too.
    return "transform" if call.in_transform else str(call.case(CODE))


class Evidence(evidence.Evidence):
    """The backward passes of one line that reached results without their graph.

    Args:
        site: the line.
        verb: what the program calls there.

    Attributes:
        results: how many results the first of them reached.
        without, partial: the names of the tensors that have no gradient, or a part of it.
    """

    code = CODE

    def __init__(self, site: Site | None, verb: str) -> None:
        super().__init__(site, "")
        self.verb = verb
        self.results = 0
        self.without: dict[str, None] = {}
        self.partial: dict[str, None] = {}
        self._dispatched: list[tuple[Site | None, str]] = []
        self._forget()

    def _forget(self) -> None:
        self.severity = Severity.WARNING
        self.case = ""
        self.results = 0
        self.samples.clear()
        self._dispatched.clear()
        self.without.clear()
        self.partial.clear()

    def add(self, result: Object, call: Any, is_wanted: Callable[[Any], bool]) -> None:
        """Add a result that a backward pass here has reached, with its call.

        Args:
            result, call: the result and its call.
            is_wanted: whether the program wants a gradient of what was sent to a call.
        """
        self.results += not self.count
        self.backend = self.backend or call.backend
        if self.severity is Severity.WARNING and call.ships_gradients:
            if is_wanted(call):
                self.severity = Severity.ERROR
            else:
                self.case = FIXED
        if not self.case or (self.case == FIXED and self.severity is Severity.ERROR):
            self.case = case_of(call)
        self.keep(result)
        dispatched = (call.site, call.backend)
        if len(self._dispatched) < SAMPLES and dispatched not in self._dispatched:
            self._dispatched.append(dispatched)

    def withdraw(self) -> None:
        """Drop one pass, which was meant to end at the results, as shown later."""
        with self._lock:
            self.count -= 1
            if not self.count:
                self._forget()

    def message(self) -> str:
        first = self.samples[0]
        results = f"{times(self.results, 'result')} of `{first.task.name}`"
        its = "its" if self.results == 1 else "their"
        message = (
            f"This {self.verb} stops at {results}, which lost {its} graph on the way back from "
            f"{self.backend} workers"
        )
        if first.description.get("over_copies"):
            message = (
                f"This {self.verb} ends in copies behind {results}: {self.backend} copies the "
                "arguments of its worker threads"
            )
        if self.without:
            message += f": {names(self.without)} {_have(self.without)} no gradient"
        elif self.partial:
            message += f": the gradient of {names(self.partial)} lacks the part from the workers"
        elif self.severity is Severity.WARNING:
            message += "; nothing that requires grad was seen to go there"
        if self.without and self.partial:
            message += f", and {names(self.partial)} {_have(self.partial)} only a part of it"
        if self.case == FIXED:
            message += ". No optimizer holds the parameters that were sent there"
        return message + "."

    def trace(self) -> Sequence[TraceStep]:
        steps: dict[TraceStep, None] = {}
        for site, backend in self._dispatched:
            if site is not None:
                text = f"the tasks go to {backend} workers"
                steps[TraceStep(site.path, site.line, text, lane="parent")] = None
        for result in self.samples:
            task = result.task
            if task.path is not None and task.line is not None:
                what = "the result" if result.path == "result" else f"`{result.path}`"
                text = f"{what} gets its graph in `{task.name}`"
                steps[TraceStep(task.path, task.line, text, lane="worker")] = None
        return list(steps)

    def about(self) -> Details:
        first = self.samples[0]
        return {
            **first.description,
            "direction": "result",
            "object": first.path,
            "objects": [result.path for result in self.samples],
            "tensors": self.tensors(),
            "history": first.history,
            "function": first.task.name,
            "results": self.results,
            "without_gradient": list(self.without),
            "partial_gradient": list(self.partial),
        }


def _have(named: Iterable[str]) -> str:
    return "has" if len(list(named)) == 1 else "have"
