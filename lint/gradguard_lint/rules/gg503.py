"""A distributed sampler shuffles, but repeats the first epoch's order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import Backward, EpochRepeated, OptimizerStep, PossibleTraining
from gradguard_lint.domain.values import Atom, Const, Instance, Site
from gradguard_lint.fixes.changes import Change, Fix, InsertBefore, Replace
from gradguard_lint.fixes.written import importing, is_bound, spelled
from gradguard_lint.rules.base import Report, place, sites_to
from gradguard_lint.words import words
from pytest_gradguard.records import fields

CODE = "GG503"

_PACKAGE, _CLASS = "torch.utils.data.distributed", "DistributedSampler"
_FULL_NAME = f"torch.utils.data.{_CLASS}"

_NONE = Const(None, "NoneType")

_TRAINING = words("backward step manual_backward")


def check(program: Program) -> Iterator[Report]:
    by_loop: dict[Site, list[Effect[EpochRepeated]]] = {}
    for effect in program.effects_of(EpochRepeated):
        loop = effect.payload.loop
        if not _trains(program, effect, loop) or _in_some_iterations(effect, loop):
            continue
        by_loop.setdefault(loop, []).append(effect)
    for loop, effects in by_loop.items():
        fix = _set_epoch(effects, loop)
        for effect in effects:
            made: tuple[Step, ...] = ()
            site = effect.payload.made
            if site is not None:
                inside = site.module is loop.module and site.stands_in(loop.node)
                each = ", anew in each iteration, and begins with epoch 0" if inside else ""
                made = (Step(site, f"the sampler is made here{each}"),)
            restarts = _restarts_at_end(effect, loop)
            often = "each time it is iterated anew in" if restarts else "in each iteration of"
            called = (
                "gets the same epoch each time" if effect.payload.same_epoch else "is not called"
            )
            yield Report(
                loop,
                f"`{effect.what}` ({place(effect.site, loop)}) gives the same order {often} "
                f"this loop: its DistributedSampler shuffles, but `set_epoch` {called}.",
                (*made, *effect.chain, Step(effect.site, "the loader is iterated here")),
                when=effect.when,
                what=effect.what,
                fix=None if effect.payload.same_epoch else fix,
                advice=_advice(effect, loop),
            )


def _advice(effect: Effect[EpochRepeated], loop: Site) -> str:
    """The advice with the program's names."""
    from pytest_gradguard.pitfalls import get

    found = _sampler(effect, loop)
    if found is None:
        return ""
    epoch = _counter(loop) or "_"
    written = f"`{found.name}.set_epoch({'epoch' if epoch == '_' else epoch})`"
    return get(CODE).advice.replace("`set_epoch(epoch)` on the sampler", written)


def _restarts_at_end(effect: Effect, loop: Site) -> bool:
    """Whether a loop over single batches starts a new pass when the last one ends."""
    return any(
        isinstance(node, ast.ExceptHandler) and site.module is loop.module and site.stands_in(node)
        for node in ast.walk(loop.node)
        for site in sites_to(effect)
    )


def _in_some_iterations(effect: Effect, loop: Site) -> bool:
    """Whether a loop without a known count starts a pass in some iterations only: it may serve
    commands, or iterate over single batches."""
    if not isinstance(loop.node, ast.While):
        return False
    sites = sites_to(effect)
    inside = [it for it in sites if it.module is loop.module and it.stands_in(loop.node)]
    first = sites.index(inside[0]) if inside else len(sites) - 1
    return any(
        isinstance(node, ast.If)
        and site.stands_in(node)
        and not (site.module is loop.module and loop.stands_in(node))
        for site in sites[first:]
        for node in ast.walk(site.module.tree)
    )


def _trains(program: Program, effect: Effect, loop: Site) -> bool:
    """Whether the data is for training, if anything in the program is."""
    sites = sites_to(effect)
    while len(sites) > 1 and _forwards_items(sites[-1].statement, sites[-2]):
        sites.pop()
    around = sites.pop().statement
    place = around if isinstance(around, (ast.For, ast.AsyncFor)) else loop.node
    inside = {id(node) for node in ast.walk(place)}
    if any(_steps(node) for node in ast.walk(place)):
        return True
    if isinstance(loop.node, ast.While) and _yields(loop.node):
        return True
    # A loop over batches may serve training and evaluation: it trains in this call.
    links = [site.node for site in sites]
    if place is not around:  # so may a function that iterates a loader by hand
        called = next((at for at, node in enumerate(links, 1) if id(node) in inside), len(links))
        links = links[:called] if called < len(links) else []
    epochs = {it.payload.loop for it in program.effects_of(EpochRepeated)}
    trains, by_epoch = False, set()
    for other in program.effects_of(Backward, OptimizerStep, PossibleTraining):
        possible = other.payload if isinstance(other.payload, PossibleTraining) else None
        if possible is None:
            trains = True
        elif possible.does == "given":
            continue
        elif possible.does == "step":
            # A step once per epoch is that of a scheduler.
            by_epoch |= {id(other.site.node)} if possible.loop in epochs else set()
            continue
        elif place is not around:
            continue  # it may train with another loader of that epoch
        if [step.site.node for step in other.chain[: len(links)]] != links:
            continue
        if any(id(step.site.node) in inside for step in (*other.chain, Step(other.site, ""))):
            return True
    modules = {effect.site.module, loop.module}
    texts = (node for module in modules for node in ast.walk(module.tree) if _steps(node))
    return not trains and all(id(node) in by_epoch for node in texts)


def _forwards_items(loop: ast.AST | None, taker: Site) -> bool:
    """Whether a generator yields in `loop` to a loop that iterates over it at `taker`."""
    around = taker.statement
    return (
        isinstance(loop, (ast.For, ast.AsyncFor))
        and isinstance(around, (ast.For, ast.AsyncFor))
        and any(node is taker.node for node in ast.walk(around.iter))
        and _yields(loop)
    )


def _yields(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a generator yields in this loop."""
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(loop))


def _steps(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TRAINING
    )


# -- the repair ------------------------------------------------------------------------------------


def _set_epoch(effects: Sequence[Effect[EpochRepeated]], loop: Site) -> Fix | None:
    """``sampler.set_epoch(epoch)`` at the top of the loop over epochs, for each of its samplers."""
    node, module = loop.node, loop.module
    epoch = _counter(loop)
    if not isinstance(node, ast.For) or epoch is None or not _counts(node.iter):
        return None
    changes: list[Change] = []
    if epoch == "_":
        if is_bound(module, "epoch"):
            return None
        epoch = "epoch"
        counted = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
        changes.append(Replace(module, counted, epoch))
    lines: dict[str, None] = {}
    for effect in effects:
        found = _sampler(effect, loop)
        if found is None:
            return None
        line = f"{found.name}.set_epoch({epoch})"
        if found.condition:
            line = f"if {found.condition}:\n    {line}"
        lines[line] = None
        changes += (change for change in found.needs if change not in changes)
    changes.append(InsertBefore(module, node.body[0], "\n".join(lines)))
    return Fix("unsafe", "tell the sampler which epoch it is", tuple(changes))


def _counter(loop: Site) -> str | None:
    """The loop variable that counts, if there is one."""
    node = loop.node
    target = node.target if isinstance(node, ast.For) else None
    if isinstance(node, ast.For) and isinstance(target, ast.Tuple) and _enumerates(node.iter):
        target = target.elts[0]
    return target.id if isinstance(target, ast.Name) else None


def _enumerates(source: ast.expr) -> bool:
    """Whether a loop over `source` enumerates."""
    return isinstance(source, ast.Call) and ast.unparse(source.func) == "enumerate"


def _counts(source: ast.expr) -> bool:
    """Whether a loop over `source` counts."""
    if not isinstance(source, ast.Call):
        return False
    if isinstance(source.func, ast.Name) and source.func.id in ("range", "enumerate"):
        return True
    first = source.args[0] if source.args else None
    return ast.unparse(source.func).endswith(("tqdm", "trange")) and (
        first is None or _counts(first) or ast.unparse(source.func).endswith("trange")
    )


@fields
class _Sampler:
    """An expression for a sampler at the loop over epochs.

    Attributes:
        condition: the condition for it to have epochs; empty if it always has.
        needs: the imports for the condition.
    """

    name: str
    condition: str = ""
    needs: tuple[Change, ...] = ()


def _sampler(effect: Effect[EpochRepeated], loop: Site) -> _Sampler | None:
    """The sampler by its variable, or as an attribute of its loader."""
    for name, value in effect.payload.names:
        if not all(_is_sampler(atom) or atom == _NONE for atom in value.atoms):
            continue
        if value.only is None:
            return _Sampler(name, f"{name} is not None")
        if not value.choices[0].when:
            return _Sampler(name)
    for name, value in effect.payload.names:
        if "." not in name:
            continue
        if value.only is not None:
            return _Sampler(name)
        called = spelled(loop.module, f"{_PACKAGE}.{_CLASS}") or spelled(loop.module, _FULL_NAME)
        needs = () if called else importing(loop.module, _CLASS, _PACKAGE)
        if needs is None:
            return None
        return _Sampler(name, f"isinstance({name}, {called or _CLASS})", needs)
    return None


def _is_sampler(atom: Atom) -> bool:
    return isinstance(atom, Instance) and atom.cls.extends(_FULL_NAME)
