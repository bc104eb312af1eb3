"""Samplers of distributed training: the order of each epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from math import inf

from gradguard_lint.domain.payloads import EpochRepeated, PossibleTraining
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Function,
    Instance,
    Site,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import descend, stored_names
from gradguard_lint.models.transfers.loaders import LOADER
from gradguard_lint.models.transfers.wrapping import within
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

PASSED = "<passed>"
"""Store key of a sampler: the loop iterations in which it was iterated in this epoch."""

SET_IN = "<set in>"
"""Store key of a sampler: the loop iterations in which its epoch was set."""


EPOCH = "<epoch>"
"""Store key of a sampler: its epoch, if known."""

AGAIN = "<again>"
"""Store key of a sampler: whether the same epoch was set again."""

_SAMPLER = "torch.utils.data.DistributedSampler"
_BATCHES = "torch.utils.data.BatchSampler"

_SHARES = ((1, "num_replicas"), (2, "rank"))
"""The arguments for a process's share of the data."""


def begins(m: Machine, frame: Frame, node: ast.AST, sampler: Instance) -> None:
    """Record a new sampler, which hasn't been iterated, unless it repeats the order of its
    predecessor."""
    if not _repeats_order(m, frame, node, sampler.ident):
        m.store[sampler.ident, PASSED] = NOTHING
    m.store[sampler.ident, EPOCH] = constant(0)
    m.store[sampler.ident, AGAIN] = NOTHING
    m.store[0, PASSED] = constant(True)


def _needs_group(m: Machine, sampler: Instance) -> bool:
    """Whether a sampler needs a process group for its share: without one it raises."""
    return any((m.read(sampler.ident, name) or NOTHING).is_none for _, name in _SHARES)


def _repeats_order(m: Machine, frame: Frame, node: ast.AST, ident: int) -> bool:
    """Whether a sampler is created again in each epoch, with the data and seed of the previous
    iteration, in which it stayed at the first epoch."""
    if not frame.loop_names or not m.place.turns.loops or not isinstance(node, ast.Call):
        return False
    last, around, names = m.place.turns.loops[-1].site, m.site(frame, node), frame.loop_names[-1]
    loop = last.node
    if last.module is not frame.module or not around.stands_in(loop):
        return False
    # Force another iteration, though all objects of this one are created again.
    m.store[0, f"{PASSED} {ident}"] = constant(True)
    before, epoch = m.read(ident, PASSED), m.read(ident, EPOCH)
    if before is None or epoch is None or epoch.constant != 0:
        return False
    turns, here = before.constant, m.place.turns.numbers()
    if not isinstance(turns, tuple) or turns[:-1] != here[:-1] or len(turns) != len(here):
        return False
    return (
        _are_the_same(node, names)
        and not _changes_data(loop, node)
        and not _trains_another(m, frame, loop, names)
    )


def _are_the_same(node: ast.Call, names: frozenset[str]) -> bool:
    """Whether a sampler is created from equal arguments in each iteration, which binds `names`;
    except for its share."""
    given = [(number, "", item) for number, item in enumerate(node.args)]
    given += [(-1, item.arg or "", item.value) for item in node.keywords]
    for number, word, item in given:
        share = any(number == place or word == name for place, name in _SHARES)
        for part in ast.walk(item):
            if isinstance(part, ast.Name) and part.id in names:
                return False
            if isinstance(part, ast.Call) and not share:
                return False
    return True


def _changes_data(loop: ast.AST, node: ast.Call) -> bool:
    """Whether an iteration of `loop` may change the data, other than by creating the sampler at
    `node` and a loader."""
    data = [*node.args[:1], *(it.value for it in node.keywords if it.arg == "dataset")]
    if not data:
        return True
    text = ast.dump(data[0])
    harmless: set[int] = set()
    for call in ast.walk(loop):
        if isinstance(call, ast.Call) and (
            call is node
            or _calls(call, "len")
            or any(item.arg in ("sampler", "batch_sampler") for item in call.keywords)
        ):
            harmless.update(id(item) for item in (*call.args, *(it.value for it in call.keywords)))
    return any(
        isinstance(part, type(data[0])) and id(part) not in harmless and ast.dump(part) == text
        for part in ast.walk(loop)
    )


def _trains_another(m: Machine, frame: Frame, loop: ast.AST, names: frozenset[str]) -> bool:
    """Whether each iteration, which binds `names`, may train another model, not one epoch."""
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        names -= stored_names(loop.target)
    loaders = set[str]()
    for name in names:
        value = m.stored(frame.ident, name)
        if value is not None and any(True for _ in samplers(m, value)):
            loaders.add(name)
    others = names - loaders
    for part in ast.walk(loop):
        if (
            isinstance(part, ast.Attribute)
            and part.attr in _OF_TRAINING
            and isinstance(part.value, ast.Name)
            and part.value.id in others
        ):
            return True
        if isinstance(part, ast.Call):
            given = (*part.args, *(item.value for item in part.keywords))
            known = {item.id for item in given if isinstance(item, ast.Name)}
            if known & loaders and known & others:
                return True
    return False


_OF_TRAINING = words("step zero_grad parameters train fit")
"""Attributes of models and their optimizers."""


def _of_program(m: Machine, instance: Instance, name: str) -> list[Function]:
    """The methods `name` of the program's subclass."""
    found = m.find_in_class(instance.cls, name)
    own = found.of(Function) if found is not None else ()
    return [function for function in own if not function.module.is_stub]


def _gives_its_order(m: Machine, sampler: Instance) -> bool:
    """Whether a sampler's order depends on its epoch."""
    orders = _of_program(m, sampler, "__iter__")
    return not _of_program(m, sampler, "set_epoch") and all(
        _goes_by_the_epoch(order.node) for order in orders
    )


def _gives_batches(m: Machine, instance: Instance) -> bool:
    """Whether iterating an object of a subclass iterates as the library's class does."""
    own = _of_program(m, instance, "__iter__")
    return not own or any(
        isinstance(part, ast.Attribute)
        and part.attr == "__iter__"
        and not isinstance(part.value, ast.Attribute)
        for function in own
        for part in descend(function.node)
    )


def _goes_by_the_epoch(order: ast.AST) -> bool:
    """Whether ``__iter__`` seeds its generator by ``self.epoch`` only, without changing it."""
    uses = [it for it in ast.walk(order) if isinstance(it, ast.Attribute) and it.attr == "epoch"]
    seeds = {
        id(part)
        for it in ast.walk(order)
        if isinstance(it, ast.Call)
        and isinstance(it.func, ast.Attribute)
        and it.func.attr == "manual_seed"
        for argument in it.args
        for part in ast.walk(argument)
    }
    return bool(uses) and all(id(it) in seeds for it in uses)


def samplers(m: Machine, value: Value) -> Iterator[Instance]:
    """The samplers of a loader, or of its arguments."""
    for instance in value.map(within).of(Instance):
        if instance.cls.extends(_SAMPLER):
            if _gives_its_order(m, instance):
                yield instance
        elif _draws(instance) and _gives_batches(m, instance):
            for name in ("sampler", "batch_sampler"):
                yield from samplers(m, m.read(instance.ident, name) or UNKNOWN)


def _draws(instance: Instance) -> bool:
    """Whether it is a loader, or another class that draws from a sampler."""
    return instance.cls.extends(LOADER) or instance.cls.extends(_BATCHES)


def record_pass(m: Machine, frame: Frame, node: ast.AST, value: Value) -> None:
    """Record that a loader is iterated, and whether its sampler repeats an order."""
    if (0, PASSED) not in m.store or not m.modes.grad:
        return
    if _calls(node, "next") or (_calls(node, "iter") and id(node) in _only_looked_at(frame.module)):
        return
    turns = m.place.turns.numbers()
    given = list(samplers(m, value))
    if any(_keeps_order(m, thing) for thing in given):
        return  # as for an evaluation: it is unknown which of several loaders this is
    for thing in given:
        shuffle = m.read(thing.ident, "shuffle")
        before = m.read(thing.ident, PASSED)
        if before is None or shuffle is None or shuffle.constants() != [True]:
            continue
        if _needs_group(m, thing) and _trains_alone(m):
            continue
        if not all(isinstance(atom, Const) for atom in shuffle.atoms):
            continue
        earlier = before.constants()
        sure = len(earlier) == len(before.atoms) and all(
            isinstance(item, tuple) for item in earlier
        )
        for item in earlier if sure else ():
            place = _loop_between(m, m.site(frame, node), item, turns)
            if place is not None and place >= _loops_that_set(m, thing):
                continue  # a pass within an epoch
            if place is not None:
                again = m.read(thing.ident, AGAIN)
                m.effect(
                    frame,
                    node,
                    ast.unparse(node),
                    EpochRepeated(
                        m.facts.origins.get((thing.ident, "shuffle")),
                        m.place.turns.loops[place].site,
                        same_epoch=again is not None and again.constant is True,
                        names=tuple(_names(m, frame, node, m.place.turns.loops[place].site, thing)),
                    ),
                )
        m.store[thing.ident, PASSED] = constant(turns)


def _keeps_order(m: Machine, sampler: Instance) -> bool:
    """Whether a sampler doesn't shuffle."""
    shuffle = m.read(sampler.ident, "shuffle")
    return shuffle is not None and False in shuffle.constants()


def _trains_alone(m: Machine) -> bool:
    """Whether this is a program of its own that can't join a process group."""
    return (
        m.place.root == 1 and m.facts.before_main is not None and not m.project.may_join_a_group()
    )


@lru_cache(maxsize=1)
def _only_looked_at(module: Module) -> frozenset[int]:
    """The ids of iterators used only for their first batch: ``next(iter(loader))``."""
    return frozenset(
        id(node.args[0])
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and _calls(node, "next") and node.args
    )


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _loop_between(m: Machine, site: Site, earlier: object, turns: tuple[int, ...]) -> int | None:
    """The loop around `site` that has moved to another iteration: in its function, as generators
    have, or any."""
    if not isinstance(earlier, tuple):
        return None
    moved = [i for i, (one, other) in enumerate(zip(earlier, turns, strict=False)) if one != other]
    loops = m.place.turns.sites()
    own = [
        index
        for index in moved
        if loops[index].module is site.module and site.stands_in(loops[index].node)
    ]
    return next(iter(own or moved), None)


def _names(
    m: Machine, frame: Frame, used: ast.AST, loop: Site, sampler: Instance
) -> Iterator[tuple[str, Value]]:
    """Expressions for a sampler at the start of an iteration of `loop`, those through its loaders
    last.

    Variables set by the loop itself don't count, nor those of other loops, which may have had
    several values. Names in the loop come first, then those in `used`.
    """
    around = (
        step.frame for step in m.place.chain if step.frame is not None and _is_in(step.site, loop)
    )
    scope = next(around, frame)
    while scope.function is None and scope.parent is not None:
        scope = scope.parent
    if scope.module is not loop.module:
        return
    whole = scope.module.tree if scope.function is None else scope.function.node
    nodes = list(ast.walk(whole))
    seen = {
        ast.unparse(node)
        for other in nodes
        if isinstance(other, _LOOPS) and (other is loop.node or not loop.stands_in(other))
        for node in ast.walk(other)
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load)
    }
    parts: list[tuple[str, Value]] = []
    for node in (*ast.walk(loop.node), *ast.walk(used), *nodes):
        value = _held(m, scope, node)
        if value is None or not any(it.ident == sampler.ident for it in samplers(m, value)):
            continue
        name = ast.unparse(node)
        if name in seen:
            continue
        seen.add(name)
        if any(map(_draws, value.of(Instance))):
            parts += _within(m, name, value)
        else:
            yield name, value
    yield from parts


def _within(m: Machine, name: str, value: Value) -> Iterator[tuple[str, Value]]:
    """Expressions for the samplers of loaders, or batch samplers, called `name`."""
    for part in ("sampler", "batch_sampler"):
        held = [m.read(it.ident, part) or UNKNOWN for it in value.of(Instance)]
        if len(held) == len(value.atoms) and any(samplers(m, join(held))):
            inner = join(held)
            if any(map(_draws, inner.of(Instance))):
                yield from _within(m, f"{name}.{part}", inner)
            else:
                yield f"{name}.{part}", inner
            return


_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _is_in(site: Site, loop: Site) -> bool:
    return site.module is loop.module and site.stands_in(loop.node)


def _held(m: Machine, scope: Frame, node: ast.AST) -> Value | None:
    """The stored value of a variable of `scope`, or of an attribute of its object."""
    if isinstance(node, ast.Name):
        found = m.lookup(scope, node.id)
        return m.stored(found[1].ident, node.id) if found is not None else None
    if not isinstance(node, ast.Attribute):
        return None
    base = _held(m, scope, node.value)
    whose = base.only if base is not None else None
    return m.stored(whose.ident, node.attr) if isinstance(whose, Instance) else None


def begin_next_loader(m: Machine, element: Value) -> None:
    """Record that a loop proceeds to the next of several loaders."""
    if (0, PASSED) in m.store:
        for atom in inner(element, 2):
            for thing in samplers(m, of(atom)):
                m.store[thing.ident, PASSED] = NOTHING


def may_train(m: Machine, frame: Frame, node: ast.AST) -> None:
    """Record a method of an unknown object that, by its name, may train."""
    if (0, PASSED) not in m.store or not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name in ("backward", "step"):
        loop = next(reversed(m.place.turns.sites()), None)
        does = PossibleTraining("step" if name == "step" else "backward", loop=loop)
        m.effect(frame, node, name, does)


def epoch_set(m: Machine, receiver: Atom, epoch: Value | None) -> None:
    """``something.set_epoch(epoch)``: of a sampler, or of an object that may hold one."""
    known = [thing.ident for thing in samplers(m, of(receiver))]
    if isinstance(receiver, Instance) and receiver.cls.extends(_SAMPLER):
        known = [receiver.ident]
    number = (
        epoch.only if epoch is not None and not m.place.yield_receivers else None
    )  # generators start again
    for ident in known or [it for it, note in m.store.held() if note == PASSED and it]:
        before = m.read(ident, EPOCH)
        passed_before = m.read(ident, PASSED) not in (None, NOTHING)
        same = isinstance(number, Const) and before is not None and before.only == number
        if known and same and passed_before:
            m.store[ident, AGAIN] = constant(True)
            continue  # the order doesn't change
        m.store[ident, EPOCH] = of(number) if isinstance(number, Const) else UNKNOWN
        m.store[ident, AGAIN] = NOTHING
        m.store[ident, PASSED] = NOTHING
        m.store[ident, SET_IN] = constant(m.place.turns.numbers())


def _loops_that_set(m: Machine, thing: Instance) -> float:
    """The number of loops around the place where a sampler's epoch was set; infinite if it wasn't,
    or outside of loops."""
    turns = m.read(thing.ident, SET_IN)
    known = turns.constant if turns is not None else None
    return len(known) if isinstance(known, tuple) and known else inf
