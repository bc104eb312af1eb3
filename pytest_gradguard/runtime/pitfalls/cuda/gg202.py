"""GG202: a tensor or array on a GPU is pickled for process workers, or from them."""

from __future__ import annotations

from pytest_gradguard.findings import Finding
from pytest_gradguard.pitfalls.advice import LOADERS
from pytest_gradguard.runtime.kernel.evidence import TransferEvidence, direction

CODE = "GG202"


class Evidence(TransferEvidence):
    """Tensors and arrays on a GPU in one call's pickling."""

    code = CODE

    def build(self) -> Finding | None:
        for sample in self.samples[:1] if self.case != LOADERS else ():
            if sample.framework.name == "torch" and direction(sample.path) == "result":
                self.case = "result"
            elif sample.framework.name == "torch" and sample.description["type"] == "Parameter":
                self.case = "model"
        return super().build()

    def message(self) -> str:
        first = self.samples[0]
        more = "" if self.count == 1 else f", one of {self.count} such objects"
        what = self.described(first, more)
        if direction(first.path) == "result":
            again = "its default GPU" if first.framework.default_gpu else "the same GPU"
            return (
                f"{what} comes back from a {self.backend} worker: its data is copied through the "
                f"CPU, and this process puts it back on {again}."
            )
        if first.description.get("shared_memory"):
            how = "reach its memory, and this process must keep the memory meanwhile"
        else:
            how = "receive it, and the data is copied through the CPU"
        return (
            f"{what} is pickled for {self.backend} workers that run `{first.task.name}`: each "
            f"worker creates its own CUDA context to {how}."
        )
