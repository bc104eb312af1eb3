"""GG107: parameters, or trainable variables, are pickled for process workers."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.evidence import TransferEvidence

CODE = "GG107"


class Evidence(TransferEvidence):
    """Parameters that one call's pickling took to its workers."""

    code = CODE

    def message(self) -> str:
        first = self.samples[0]
        many = "1 parameter is" if self.objects == 1 else f"{self.objects} parameters are"
        shared = first.description.get("shared_memory")
        reads = (
            "shares their memory, but not their gradients" if shared else "reads or trains a copy"
        )
        return (
            f"{many} pickled for {self.backend} workers, the first {self.described(first)}: "
            f"`{first.task.name}` {reads}."
        )
