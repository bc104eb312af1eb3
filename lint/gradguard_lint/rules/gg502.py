"""A model is trained past the wrapper that averages its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.values import Site
from gradguard_lint.rules.base import Report, code

CODE = "GG502"


def check(program: Program) -> Iterator[Report]:
    if program.kinds("reduced"):
        return  # gradients, or parameters, are averaged by hand somewhere
    forwards = {effect.ident: effect for effect in program.kinds("ddp-bypass")}
    for effect in program.kinds("ddp-step"):
        forward = forwards.get(effect.ident)
        if forward is None:
            continue
        wrapper = str(forward.value.constant or "DistributedDataParallel").rpartition(".")[2]
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


def _case(forward: Effect, step: Effect) -> str:
    """Whether it is a method of the module that trains it (a loop), or computes the loss."""
    called = forward.place.node if forward.place is not None else None
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return ""
    if called.func.attr in ("forward", "module"):
        return ""
    inside = any(link.site == forward.place for link in step.chain)
    return "training loop" if inside else "method"


def _entered(forward: Effect) -> tuple[Sequence[Step], Site, str]:
    """How the program comes to the module, where it does, and what it calls there."""
    site = forward.place
    if site is None or not isinstance(site.node, ast.Call):
        return forward.chain, forward.site, forward.what
    number = [step.site for step in forward.chain].index(site)
    return forward.chain[:number], site, f"{ast.unparse(site.node.func)}(...)"
