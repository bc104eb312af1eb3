"""GG502: an optimizer steps with gradients that a DistributedDataParallel module did not average.

`distributed.averaging` hears of the backward passes and of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gradguard.details import Details
from pytest_gradguard.runtime import evidence
from pytest_gradguard.runtime.callsite import Site
from pytest_gradguard.runtime.evidence import names, times

CODE = "GG502"


class Evidence(evidence.Evidence):
    """The steps of one line with gradients of this rank alone.

    Args:
        site: the line of the step.
        backward: the line where the gradients come from.
        verb: what the program calls there.
        parameters: the names of the parameters that have such gradients.
        of_all: how many parameters the optimizer holds.
        ranks: how many ranks there are.
        about: the first parameter, described.
    """

    code = CODE

    def __init__(
        self,
        site: Site | None,
        backward: Site | None,
        verb: str,
        parameters: Sequence[str],
        of_all: int,
        ranks: int,
        about: Details,
    ) -> None:
        super().__init__(site, "torch.distributed", **about)
        self.details.update(
            {
                "direction": "result",
                "object": parameters[0],
                "parameters": list(parameters),
                "of_all": of_all,
                "world_size": ranks,
            }
        )
        self._line = "" if backward is None else f" at line {backward.line}"
        self._verb = verb
        self._parameters = parameters
        self._of_all = of_all
        self._ranks = ranks
        if backward is not None:
            text = f"this {verb} gives gradients that are not averaged"
            self.add_step(text, backward.path, backward.line, None)

    def message(self) -> str:
        reason = (
            f"`autograd.grad`{self._line} returns gradients that it does not accumulate, and DDP "
            "averages none of them"
            if self._verb == "autograd.grad"
            else f"the forward pass before the backward{self._line} bypassed the DDP module"
        )
        few = (
            " With a single rank the numbers are still right; with more, each rank trains alone."
            if self._ranks == 1
            else ""
        )
        return (
            f"`optimizer.step()` uses gradients of this rank alone: {len(self._parameters)} of its "
            f"{times(self._of_all, 'parameter')} ({names(self._parameters)}) belong to a "
            "DistributedDataParallel module that did not average their gradients, because "
            f"{reason}.{few}"
        )
