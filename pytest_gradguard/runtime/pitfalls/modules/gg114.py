"""GG114: a worker trains its copy of a module, and the parent uses the untrained one.

`trained_copies` detects the training, in the worker; `worker_buffers` the parent's use afterwards.
"""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import times
from pytest_gradguard.runtime.pitfalls.modules import gg111

CODE = "GG114"
PROBES = (Probe("gg114", "pytest_gradguard.runtime.pitfalls.modules.trained_copies"),)


class Evidence(gg111.Evidence):
    """Trained copies of modules that one call's tasks left in their workers."""

    code = CODE
    left = "trains its copy with an optimizer of its own, and does not return it"

    def message(self) -> str:
        task, parameters = self._kept.task.name, self._kept.names
        uses = " and ".join(use.value for use in self._uses)
        return (
            f"`{task}` trains its copy of {self._module} in a {self.backend} worker: an optimizer "
            f"there steps {times(len(parameters), 'parameter')}. It returns neither the copy nor "
            f"its parameters. The parent then {uses}, untrained as it was before the call."
        )
