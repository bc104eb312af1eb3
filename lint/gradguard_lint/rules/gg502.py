"""A model is trained without the wrapper that averages its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import Collective, WrapperBypass
from gradguard_lint.domain.values import Site
from gradguard_lint.rules.base import Report, code

CODE = "GG502"


def check(program: Program) -> Iterator[Report]:
    if any(it.payload.does == "reduce" for it in program.effects_of(Collective)):
        return  # gradients, or parameters, are averaged by hand
    effects = program.effects_of(WrapperBypass)
    forwards = {it.payload.forward: it for it in effects if not it.payload.stepped}
    for effect in effects:
        forward = forwards.get(effect.payload.forward)
        if forward is None or not effect.payload.stepped:
            continue
        wrapper = str(forward.payload.wrapper.constant or "DistributedDataParallel").rpartition(
            "."
        )[2]
        chain, site, what = _entered(forward)
        prepared = wrapper == "prepare"  # a single process has no wrapper
        yield Report(
            site,
            f"{code(what)} bypasses "
            f"{'the model that `prepare` returned' if prepared else wrapper}: the optimizer steps "
            "with the gradients of this rank alone, and the ranks drift apart.",
            (
                *chain,
                Step(effect.site, "the optimizer steps with gradients that were not averaged"),
            ),
            severity="warning" if prepared else None,
            what=what,
            case=_case(forward, effect),
        )


def _case(forward: Effect[WrapperBypass], step: Effect) -> str:
    """The case of the advice: a method of the module with the training loop, or with the loss."""
    place = forward.payload.place
    called = place.node if place is not None else None
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return ""
    if called.func.attr in ("forward", "module"):
        return ""
    inside = any(link.site == place for link in step.chain)
    return "training loop" if inside else "method"


def _entered(forward: Effect[WrapperBypass]) -> tuple[Sequence[Step], Site, str]:
    """The steps to the module, the site of its call, and the called expression."""
    site = forward.payload.place
    if site is None or not isinstance(site.node, ast.Call):
        return forward.chain, forward.site, forward.what
    number = [step.site for step in forward.chain].index(site)
    return forward.chain[:number], site, f"{ast.unparse(site.node.func)}(...)"
