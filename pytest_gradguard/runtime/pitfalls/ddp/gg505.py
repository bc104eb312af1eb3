"""GG505: parameters that have to be equal on all ranks differ after an optimizer's step.

`divergence` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.evidence import names, times

if TYPE_CHECKING:
    from pytest_gradguard.runtime.pitfalls.ddp.sketches import Difference  # which imports torch

CODE = "GG505"


class Cause(NamedTuple):
    """An observed reason for the difference.

    Attributes:
        kind: the code of a finding, or `seed` or `skipped-step`.
        text: a sentence.
        advice: the fix.
    """

    kind: str
    text: str
    advice: str


def began_apart(ddp: bool) -> Cause:
    """The parameters differed before the first step."""
    if ddp:
        text = (
            "They differed before the first step: they were initialized, loaded or changed after "
            "the module was wrapped, and only the wrapping copies those of rank 0."
        )
        advice = (
            "Initialize and load the module before you wrap it in `DistributedDataParallel`. "
            "Afterwards, do the same on all ranks, with the same seed."
        )
        return Cause("seed", text, advice)
    text = (
        "They differed before the first step: each rank initialized them with a random seed of "
        "its own, and nobody copied them to the other ranks."
    )
    advice = (
        "Before the first step, copy the parameters of rank 0: `for parameter in "
        "model.parameters(): torch.distributed.broadcast(parameter.data, 0)`. Or call "
        "`torch.manual_seed` with the same seed on each rank before you build the model."
    )
    return Cause("seed", text, advice)


def skipped(rank: int, other: int) -> Cause:
    """One rank has made fewer steps than another one, with the same gradients."""
    text = f"Rank {rank} skipped a step that rank {other} made."
    advice = (
        "Decide on all ranks alike whether to step: `all_reduce` what the decision depends on, "
        "such as the loss, and step on each rank or on none."
    )
    return Cause("skipped-step", text, advice)


class Evidence(evidence.Evidence):
    """The parameters of one module that differ between ranks.

    Args:
        site: the step after which they differ.
        backend: that of the process group.
        parameters: the names of the differing parameters, the largest difference first.
        of_all: how many were compared.
        most: the largest difference.
        ranks: the two ranks.
        step: after how many steps it was observed.
        equal_at: after how many steps they were last equal.
        still_holds: tells, as findings are built, whether it holds.
    """

    code = CODE

    def __init__(
        self,
        site: Site | None,
        backend: str,
        parameters: Sequence[str],
        of_all: int,
        most: Difference,
        ranks: Sequence[int],
        step: int,
        equal_at: int | None,
        still_holds: Callable[[], bool],
    ) -> None:
        super().__init__(site, backend, framework="torch", direction="result")
        self.details.update(
            {
                "object": parameters[0],
                "parameters": list(parameters),
                "of_all": of_all,
                "difference": most.size,
                "compared_ranks": sorted(ranks),
                "step": step,
            }
        )
        self.causes: dict[str, Cause] = {}
        self._exact = most.exact
        self._equal_at = equal_at
        self._still_holds = still_holds

    def explain(self, causes: Iterable[Cause]) -> None:
        """Record observed reasons for the difference."""
        for cause in causes:
            self.causes.setdefault(cause.kind, cause)

    def build(self) -> Finding | None:
        if not self._still_holds():
            return None
        causes = list(self.causes.values())
        self.details["causes"] = [one.kind for one in causes]
        if causes:
            self.advice = causes[0].advice
        return super().build()

    def message(self) -> str:
        details = self.details
        differing, step = details["parameters"], details["step"]
        one, other = details["compared_ranks"]
        about = "" if self._exact else "about "
        after = f"after step {step}"
        if self._equal_at and self._equal_at != step - 1:
            after += f" (not yet after step {self._equal_at})"
        causes = [one.text for one in self.causes.values()] or ["The cause was not seen."]
        return (
            f"The parameters are no longer equal on ranks {one} and {other} {after}: "
            f"{len(differing)} of {times(details['of_all'], 'parameter')} "
            f"{'differs' if len(differing) == 1 else 'differ'} ({names(differing)}), by up to "
            f"{about}{details['difference']:.3g} in `{differing[0]}`. {' '.join(causes)} "
            "From here on, each rank trains a model of its own."
        )
