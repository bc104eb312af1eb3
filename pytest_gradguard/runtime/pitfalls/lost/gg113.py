"""GG113: a tensor with hooks is pickled for process workers, and the hooks stay behind."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel.evidence import TransferEvidence
from pytest_gradguard.runtime.kernel.framework import Framework

CODE = "GG113"


def takes(item: Any, framework: Framework) -> bool:
    """Whether hooks of the program's are registered on a tensor or parameter."""
    return bool(framework.hooks_of(item))


class Evidence(TransferEvidence):
    """Tensors and parameters with hooks that one call's pickling took to its workers."""

    code = CODE

    def message(self) -> str:
        first = self.samples[0]
        more = "" if self.objects == 1 else f", one of {self.objects} such tensors"
        return (
            f"{self.described(first, more)} has a gradient hook and is pickled for {self.backend} "
            f"workers: the hook stays behind, and does not run when `{first.task.name}` computes "
            "the gradient."
        )
