"""GG101: a tensor that needs a gradient is pickled for process workers."""

from __future__ import annotations

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel.evidence import TransferEvidence

CODE = "GG101"


class Evidence(TransferEvidence):
    """Tensors that one call's pickling took to its workers."""

    code = CODE

    def build(self) -> Finding | None:
        if self.answered >= self.count:  # each worker has returned the gradient
            return None
        if self._on_a_tape():
            self.advice = pitfalls.get("GG105").advice
        return super().build()

    def _on_a_tape(self) -> bool:
        return bool(self.samples) and self.samples[0].framework.on_tapes

    def message(self) -> str:
        first = self.samples[0]
        if first.history:
            lost = "the worker gets a copy without its history"
        elif first.description.get("shared_memory"):
            lost = "the worker shares its memory, not its graph"
        else:
            lost = "the worker works on a copy"
        needs = "is watched by a tape" if self._on_a_tape() else "requires grad"
        return (
            f"{self.described(first)} {needs} and is pickled for {self.backend} workers: "
            f"{lost}, and no gradient comes back."
        )
