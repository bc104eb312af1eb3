"""A cached function returns a tensor with history: from the second run on, it has no graph."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, Step
from gradguard_lint.rules.base import Report

CODE = "GG108"


def check(program: Program) -> Iterator[Report]:
    for effect in program.library_uses("cached graph"):
        made = effect.payload.place
        yield Report(
            made or effect.site,
            f"`{effect.what}` is cached by joblib and returns a tensor with autograd history: "
            "a call that hits the cache returns it without its graph.",
            (Step(effect.site, "the cached function returns such a tensor for this call"),)
            if made is not None and effect.site.node is not made.node
            else (),
        )
