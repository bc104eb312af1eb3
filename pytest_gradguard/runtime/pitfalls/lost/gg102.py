"""GG102: a process worker returns a tensor with its graph, which pickling drops."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.runtime.kernel import calls
from pytest_gradguard.runtime.kernel.evidence import Object, TransferEvidence
from pytest_gradguard.runtime.kernel.framework import Framework
from pytest_gradguard.runtime.kernel.lineage import LINEAGE, is_forked

CODE = "GG102"


def leaf_provenance(history: Any, framework: Framework) -> tuple[Any, ...]:
    """The lineage of a forked worker, and the leaves behind a result (`leaves_behind`)."""
    if not (framework.backwards and is_forked()):
        return ()
    from pytest_gradguard.runtime.frameworks.torch.copies import leaves_behind

    return LINEAGE, leaves_behind(history)


def on_rebuilt(token: int, note: Object, tensor: Any, *inherited: Any) -> None:
    """Remember `tensor`, which had a graph in its worker, for the backward pass that reaches it."""
    if not note.framework.backwards:
        calls.note_crossed(token, CODE, note)
        return
    from pytest_gradguard.runtime.pitfalls.lost import provenance

    provenance.remember(token, note, tensor)
    if inherited:
        provenance.inherit(token, *inherited)


class Evidence(TransferEvidence):
    """Tensors with history that came back from the workers of one call."""

    code = CODE

    def build(self) -> Finding | None:
        # A tensor kept by an object, such as an estimator's last loss, may never be used.
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
