"""GG112: an optimizer steps the parameters of a model that a worker's copy has replaced.

`shipped_modules` finds the original of each module that comes back from a worker;
`replaced_modules` checks the optimizer steps from then on.
"""

from __future__ import annotations

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import names, times
from pytest_gradguard.runtime.kernel.registry import later
from pytest_gradguard.runtime.kernel.tasks import Task

CODE = "GG112"
PROBES = (Probe("gg112", f"{__name__.rpartition('.')[0]}.sent_modules"),)

on_module_returned = later(f"{__name__.rpartition('.')[0]}.replaced_modules:remember")


class Evidence(evidence.Evidence):
    """The steps of one line over parameters of modules that were replaced.

    Args:
        site: the line.
        call: the call that returned the modules.
        task: the task that did.
    """

    code = CODE

    def __init__(self, site: Site | None, call: Call, task: Task) -> None:
        super().__init__(site, call.backend, direction="result", object="result")
        self._task = task
        self._line = None if call.site is None else call.site.line
        self._names: list[str] = []
        self._parameters = 0
        if call.site is not None:
            text = f"copies of the parameters are sent to {self.backend} workers here"
            self.add_step(text, call.site.path, call.site.line, "parent")
        self.add_step(f"`{task.name}` returns the copy", task.path, task.line)

    def describe(self, replaced: list[str], first: Details, parameters: int) -> None:
        """Record what the first step here missed.

        Args:
            replaced: the names of the parameters that lack a gradient while their returned copies
                have one.
            first: the description of the first of them.
            parameters: how many the optimizer holds.
        """
        self._names = replaced
        self._parameters = parameters
        self.details.update(
            {**first, "function": self._task.name, "parameters": parameters, "replaced": replaced}
        )

    def message(self) -> str:
        count = len(self._names)
        old = f"{count} of its {times(self._parameters, 'parameter')}"
        if count == self._parameters:
            old = "its " + times(count, "parameter")
        have = "has" if count == 1 else "have"
        return (
            f"`optimizer.step()` does not update the model in use: {old} ({names(self._names)}) "
            f"{have} no gradient. They belong to the model that was sent to `{self._task.name}` in "
            f"a {self.backend} worker. The gradients are in the copy that it returned, which this "
            "optimizer does not hold."
        )
