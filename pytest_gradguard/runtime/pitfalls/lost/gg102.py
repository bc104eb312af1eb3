"""GG102: a process worker returns a tensor with its graph, which pickling drops."""

from __future__ import annotations

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.runtime.kernel.evidence import TransferEvidence

CODE = "GG102"


class Evidence(TransferEvidence):
    """Tensors with history that came back from the workers of one call."""

    code = CODE

    def build(self) -> Finding | None:
        # An object that keeps a tensor, such as an estimator its last loss, may never be asked.
        self.severity = None if self.plain else Severity.INFO
        if any(sample.description.get("hangs") for sample in self.samples):
            self.severity = Severity.ERROR
        return super().build()

    def message(self) -> str:
        first = self.samples[0]
        what = "a tensor" if first.path == "result" else f"`{first.path}`"
        refused = first.description.get("refused")
        if refused == "stack":
            return (
                f"`{first.task.name}` returns {what}, which requires grad, in a {self.backend} "
                f"worker ({first.label()}): there the samples are put together in shared memory, "
                "which torch refuses for tensors that require grad."
            )
        if refused:
            return (
                f"`{first.task.name}` returns {what} with its graph from a {self.backend} worker "
                f"({first.label()}): torch refuses to send it, the batch never arrives, and the "
                f"loader waits {'forever' if first.description.get('hangs') else 'in vain'}."
            )
        inside = "" if self.plain else " inside another object"
        return (
            f"`{first.task.name}` returns {what} with its graph{inside} from a {self.backend} "
            f"worker ({first.label()}): pickling drops the graph, and the parent gets a leaf."
        )
