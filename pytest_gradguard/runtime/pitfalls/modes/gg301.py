"""GG301: modes that apply in the calling thread, and not where its tasks run.

`torch_modes` handles its modes (gradients off, autocast, a default device), `torch_transforms` its
transforms of `torch.func` and levels of forward mode, and `torch_settings` the settings of its
process (a default dtype, deterministic algorithms, precisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import TORCH, Probe, threads
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence

CODE = "GG301"
MODES = "gg301_modes"
TRANSFORMS = "gg301_transforms"
SETTINGS = "gg301_settings"
PROBES = (
    Probe(MODES, "pytest_gradguard.runtime.pitfalls.modes.torch_modes", asks=(TORCH,), needs=TORCH),
    Probe(
        TRANSFORMS,
        "pytest_gradguard.runtime.pitfalls.modes.torch_transforms",
        asks=(TORCH,),
        needs=TORCH,
        ships=threads,
        only_asked=True,
    ),
    Probe(
        SETTINGS,
        "pytest_gradguard.runtime.pitfalls.modes.torch_settings",
        asks=(TORCH,),
        needs=TORCH,
        starts=True,
    ),
)


class Evidence(TaskEvidence):
    """Tasks of one call that ran without a mode, transform or setting of the caller.

    Args:
        site, backend: the call.
        says: makes the message.
        details: the finding's details.
    """

    code = CODE

    def __init__(
        self, site: Site | None, backend: str, says: Callable[[Evidence], str], **details: Any
    ) -> None:
        super().__init__(site, backend, framework="torch", **details)
        self._says = says

    def message(self) -> str:
        return self._says(self)
