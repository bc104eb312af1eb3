"""GG502: an optimizer steps with gradients that a DistributedDataParallel module did not average.

`averaging` watches the backward passes and the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytest_gradguard import pitfalls
from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.evidence import names, times
from pytest_gradguard.runtime.kernel.state import dropped_at_end

CODE = "GG502"


class Cause(NamedTuple):
    """Why gradients were not averaged.

    Attributes:
        text: the reason, as a clause; `{verb}` and `{line}` are those of the backward pass.
        advice: the fix, if not the pitfall's.
    """

    text: str
    advice: str | None = None


def bypassed() -> Cause:
    """The reducer did not run."""
    return Cause("the forward pass before the {verb}{line} bypassed the DDP module")


def repeated() -> Cause:
    """The reducer had run for the same forward pass already."""
    return Cause(
        "the {verb}{line} comes after another one, and DDP averages in one backward pass alone "
        "between two forward passes",
        "Add the losses, and call `backward()` once on their sum. Or call the DDP module again "
        "before each further backward pass.",
    )


def waiting(parameters: Sequence[str]) -> Cause:
    """The reducer began, and still waits for the gradients of `parameters`."""
    named = names(parameters)
    return Cause(
        f"the {{verb}}{{line}} does not reach {named}: DDP averages none of them before it has all",
        f"Add `0 * output.sum()` to the loss, for what the DDP module returns: then it reaches "
        f"{named}. If the forward pass does not use {_them(parameters)}, pass "
        "`find_unused_parameters=True` to `DistributedDataParallel`.",
    )


def added_later(parameters: Sequence[str], unfrozen: bool) -> Cause:
    """`parameters` were added, or unfrozen, after the module was wrapped."""
    was = "was" if len(parameters) == 1 else "were"
    happened = "frozen when" if unfrozen else "replaced or added after"
    return Cause(
        f"{names(parameters)} {was} {happened} the module was wrapped, and DDP averages only what "
        "was trainable then",
        f"{'Unfreeze' if unfrozen else 'Replace or add'} {_them(parameters)} first. Then wrap the "
        "module in `DistributedDataParallel`, and build the optimizer last.",
    )


def paused(by_accelerate: bool) -> Cause:
    """All backward passes ran in `no_sync`, of the program or of accelerate's `accumulate`."""
    text = "every backward pass before it ran inside `no_sync`, and DDP averages only outside of it"
    if by_accelerate:
        return Cause(
            text,
            "Pass the optimizer to `accelerator.prepare()`: it then steps only after a backward "
            "pass that averages.",
        )
    return Cause(
        text,
        "Use `no_sync()` for all but the last backward pass before each step: that one averages "
        "what was accumulated.",
    )


def _them(parameters: Sequence[str]) -> str:
    return "it" if len(parameters) == 1 else "them"


_unfinished: ByIdentity[list[Evidence]] = dropped_at_end(ByIdentity())
"""The steps, by DDP module, whose next forward pass may explain more (GG504)."""


def may_fail(ddp: Any, found: Evidence) -> None:
    """Record a step in `found` after which the next forward pass of `ddp` may fail."""
    _unfinished[ddp] = [*(_unfinished.get(ddp) or ()), found]


def has_failed(ddp: Any) -> None:
    """Drop the steps before a forward pass of `ddp` that failed: GG504 reports it."""
    for found in _unfinished.pop(ddp) or ():
        found.count -= 1


_of_modules: ByIdentity[list[Evidence]] = dropped_at_end(ByIdentity())
"""What was found of each DDP module."""


def found(ddp: Any, evidence: Evidence) -> None:
    """Record that gradients of `ddp` were not averaged."""
    known = _of_modules.get(ddp) or []
    if evidence not in known:
        _of_modules[ddp] = [*known, evidence]


def causes(ddp: Any) -> list[tuple[str, str, str]]:
    """The findings on `ddp`, each as code, reason as a sentence, and fix."""
    fix = pitfalls.get(CODE).fix
    return [
        (CODE, f"DDP did not average their gradients ({CODE}): {one.reason()}.", one.advice or fix)
        for one in _of_modules.get(ddp) or ()
    ]


class Evidence(evidence.Evidence):
    """The steps of one line with gradients of this rank alone.

    Args:
        site: the line of the step.
        backward: the line where the gradients come from.
        verb: what the program calls there.
        cause: why they were not averaged.
        parameters: the names of the parameters with such gradients.
        of_all: how many parameters the optimizer holds.
        ranks: how many ranks there are.
        about: the description of the first parameter.

    Attributes:
        still_holds: tells, as findings are built, whether it holds; None: it does.
    """

    code = CODE

    def __init__(
        self,
        site: Site | None,
        backward: Site | None,
        verb: str,
        cause: Cause,
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
        self.advice = cause.advice
        self.still_holds: Callable[[], bool] | None = None
        self._cause = cause.text
        self._line = "" if backward is None else f" at line {backward.line}"
        self._verb = verb
        self._parameters = parameters
        self._of_all = of_all
        self._ranks = ranks
        if backward is not None:
            text = f"this {verb} gives gradients that are not averaged"
            self.add_step(text, backward.path, backward.line, None)

    def build(self) -> Finding | None:
        return super().build() if self.still_holds is None or self.still_holds() else None

    def reason(self) -> str:
        """Why the gradients were not averaged, as a clause."""
        if self._verb == "autograd.grad":
            return (
                f"`autograd.grad`{self._line} returns gradients that it does not accumulate, and "
                "DDP averages none of them"
            )
        return self._cause.format(verb=self._verb, line=self._line)

    def message(self) -> str:
        few = (
            " With a single rank the numbers are still right; with more, each rank trains alone."
            if self._ranks == 1
            else ""
        )
        return (
            f"`optimizer.step()` uses gradients of this rank alone: {len(self._parameters)} of its "
            f"{times(self._of_all, 'parameter')} ({names(self._parameters)}) belong to a "
            "DistributedDataParallel module that did not average their gradients, because "
            f"{self.reason()}.{few}"
        )


class ShardsEvidence(evidence.Evidence):
    """The steps of one line that lack gradients which `fully_shard` has not reduced.

    Args:
        site: the line of the step.
        paused: where the program turned the reduction off.
        parameters: the names of the parameters.
        of_all: how many parameters the optimizer holds.
        ranks: how many ranks there are.

    Attributes:
        reduced: tells whether they were reduced later.
    """

    code = CODE
    advice = (
        "Call `model.set_requires_gradient_sync(True)` before the last backward pass ahead of each "
        "step: that one reduces what was accumulated."
    )

    def __init__(
        self,
        site: Site | None,
        paused: Site | None,
        parameters: Sequence[str],
        of_all: int,
        ranks: int,
    ) -> None:
        super().__init__(site, "torch.distributed", direction="result", object=parameters[0])
        self.details.update({"parameters": list(parameters), "world_size": ranks})
        self.reduced: Callable[[], bool] = bool
        self._parameters = parameters
        self._of_all = of_all
        if paused is not None:
            text = "from here on, backward passes do not reduce gradients"
            self.add_step(text, paused.path, paused.line, None)

    def build(self) -> Finding | None:
        return None if self.reduced() else super().build()

    def message(self) -> str:
        return (
            f"`optimizer.step()` leaves {len(self._parameters)} of its "
            f"{times(self._of_all, 'parameter')} ({names(self._parameters)}) as they are: every "
            "backward pass ran with `set_requires_gradient_sync(False)`, so `fully_shard` has "
            "reduced none of their gradients, and their `.grad` is None."
        )
