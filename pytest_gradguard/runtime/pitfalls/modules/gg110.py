"""GG110: an optimizer that has made steps is pickled on its own, and arrives unbuilt."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.evidence import TransferEvidence, direction, times

CODE = "GG110"


class Evidence(TransferEvidence):
    """Optimizers without their models in one call's pickling."""

    code = CODE

    def message(self) -> str:
        first = self.samples[0]
        about = first.description
        if direction(first.path) == "result":
            how = f"handed back by `{first.task.name}` from a {self.backend} worker"
        else:
            how = f"pickled for {self.backend} workers that run `{first.task.name}`"
        steps = times(about["iterations"], "step")
        return (
            f"{self.quoted(first).name} ({about['type']}, {steps} done) is {how} without its "
            "model: it arrives unbuilt, and its state from these steps is lost."
        )
