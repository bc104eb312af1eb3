"""Averaging of gradients: wrapped modules, their forward and backward passes, and steps.

Notes are in the store, under the identity of their subject, so that they are copied and joined with
everything else. Rules use only certain ones.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import partial

from gradguard_lint.domain.conditions import assume
from gradguard_lint.domain.payloads import (
    Collective,
    LibraryUse,
    PossibleTraining,
    WrapperBypass,
)
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    GRADIENT,
    NOTHING,
    OUTPUT,
    UNKNOWN,
    Atom,
    Class,
    Const,
    External,
    Frame,
    Instance,
    Site,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.branches import stored_at
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import identity_at, prove
from gradguard_lint.models.distributed import LIGHTNING
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import module_parts
from gradguard_lint.models.transfers.collectives import OWN, changed_tensors
from gradguard_lint.models.transfers.frozen import module_by_use
from gradguard_lint.models.transfers.samplers import PASSED, samplers
from gradguard_lint.words import words
from pytest_gradguard.records import replace

WRAPPED = "<wrapped>"
"""Store key of a module, or part of one: the module that DistributedDataParallel wraps."""

WRAPPER = "<wrapper>"
"""Store key of a wrapped module: the wrapper's name."""

AVERAGED = "<averaged>"
"""Store key of a wrapped module: gradients may have been averaged since the last step."""

ALONE = "<one rank>"
"""Store key of a wrapped module: the forward pass, bypassing its wrapper, of its gradients."""

AROUND = "<forward of>"
"""Store key of a forward pass: its wrapped module."""

WAYS = 64
"""The limit of paths that differ in the modules of their forward passes."""

PURE_BUILTINS = words("print len isinstance hasattr id repr type")


def backward(
    m: Machine, frame: Frame, node: ast.AST, target: Value, inputs: Value | None = None
) -> None:
    """A backward pass from `target`: its severed part, and gradients that aren't averaged.

    `inputs`: the argument of ``autograd.grad``.
    """
    tensors = [atom for atom in inner(target) if isinstance(atom, Tensor)]
    cut = {ident for tensor in tensors for ident in tensor.severed}
    lost = {ident for ident in cut if _is(m, ident, OWN, False)}
    if lost:
        kept = changed_tensors(target, lambda atom: replace(atom, severed=atom.severed & lost))
        m.effect(frame, node, "the backward pass", Collective("cut", kept))
    wrapped = _wrapped_modules(m)
    if not wrapped:
        return
    known = bool(tensors) and not any(isinstance(atom, Unknown) for atom in inner(target))
    forwards = frozenset[int]().union(*(tensor.severed for tensor in tensors))
    go = partial(_record_averaging, m, frame, node, wrapped, tensors, inputs, known=known)
    _split_by_value(m, forwards, go)


def _split_by_value(
    m: Machine, forwards: frozenset[int], go: Callable[[], None], most: int = WAYS
) -> None:
    """Run `go` on each path with known modules of `forwards`; `most` paths of all."""
    for ident in forwards:
        note = m.read(ident, AROUND)
        if note is not None and note.only is None and all(it.when for it in note.choices):
            ways = len(note.choices)
            if ways <= most:
                break
    else:
        go()
        return
    before, ends = m.state, []
    for choice in note.choices:
        m.state = before.copy()
        assume(m.assumed, choice.when)
        _split_by_value(m, forwards - {ident}, go, most // ways)
        ends.append(m.state)
    m.meet(ends)
    m.state.assumed = before.assumed


def _record_averaging(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    wrapped: Iterable[int],
    tensors: list[Tensor],
    inputs: Value | None,
    *,
    known: bool,
) -> None:
    """Record the effect of a backward pass from `tensors` on gradients of `wrapped` modules.

    `known`: whether it starts from these only.
    """
    for top in wrapped:
        forwards = [
            {ident for ident in tensor.severed if top in _numbers(m, ident, AROUND)}
            for tensor in tensors
            if tensor.framework == "torch"
        ]
        common = set.intersection(*forwards) if forwards and known else set()
        common = {ident for ident in common if _number(m, ident, AROUND) == top}
        past = sorted(ident for ident in common if (ident, WRAPPED) not in m.store)
        if inputs is not None:
            own = any(
                isinstance(atom, Tensor) and atom.grad == "parameter" and top in atom.sources
                for atom in inner(inputs)
            )
            if own and common:
                asked = m.ident_at(node, "asked")
                m.effect(frame, node, "`autograd.grad(...)`", WrapperBypass(asked))
                m.store[top, ALONE] = constant(asked)
        elif past and not any((i, WRAPPED) in m.store for group in forwards for i in group):
            m.store[top, ALONE] = constant(past[0])
        elif not known or any(forwards) or any(t.grad == "unknown" for t in tensors):
            m.store[top, AVERAGED] = constant(True)


def unknown_backward(m: Machine) -> None:
    """Record a backward pass from an unknown value: it may average all gradients."""
    for top in _wrapped_modules(m):
        m.store[top, AVERAGED] = constant(True)


def returned_loss(m: Machine, frame: Frame, node: ast.AST, receiver: Atom, value: Value) -> None:
    """Record the loss that a method called by Lightning returns."""
    if not isinstance(receiver, Instance) or not is_lightning(m, receiver.cls):
        return
    m.effect(frame, node, "the loss", PossibleTraining("given", value))
    for atom in value.atoms:
        if isinstance(atom, Table):
            backward(m, frame, node, atom.get("loss") or UNKNOWN)
        elif isinstance(atom, Tensor):
            backward(m, frame, node, of(atom))


def is_lightning(m: Machine, cls: Class) -> bool:
    registry = registry_of(m)
    return any(
        isinstance(base, External) and registry.canonical(base.name) == LIGHTNING
        for base in cls.outside()
    )


def _is(m: Machine, ident: int, note: str, wanted: object) -> bool:
    """Whether a note certainly is `wanted`."""
    value = m.read(ident, note)
    return value is not None and all(
        isinstance(atom, Const) and atom.value == wanted for atom in value.atoms
    )


def _numbers(m: Machine, ident: int, note: str) -> set[int]:
    """The possible numbers in a note."""
    value = m.read(ident, note)
    return {it for it in value.constants() if isinstance(it, int)} if value is not None else set()


def _number(m: Machine, ident: int, note: str) -> int:
    """The number in a note; 0 if it is unknown."""
    value = m.read(ident, note)
    only = value.only if value is not None else None
    number = only.value if isinstance(only, Const) else 0
    return number if isinstance(number, int) else 0


def _wrapped_in(m: Machine, ident: int) -> int:
    """The identity of the wrapped module that this one is, or is a part of; 0 if there is none.

    A module created later by the same expression isn't wrapped yet.
    """
    value = m.read(ident, WRAPPED) if ident else None
    if value is None or any(isinstance(atom, Unknown) for atom in value.atoms):
        return 0
    now = m.place.turns.made.get(ident, 0)
    tops = {it[0] for it in value.constants() if isinstance(it, tuple) and it[1] == now}
    return tops.pop() if len(tops) == 1 else 0


def data_parallel(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``DistributedDataParallel(module)``: only its own forward pass averages gradients."""
    module = args.get(*row.argument)
    if module is None:
        return UNKNOWN
    wrapper = module.map(lambda atom: wrap(m, node, name, atom))
    devices = args.get(1, "device_ids")
    if m.place.worker is not None and (devices is None or devices.is_none):
        for thing in wrapper.things("model"):
            if not thing.gpu and not module_parts.is_away(m, thing.ident):
                use = LibraryUse("wrapped on the CPU", (of(thing),))
                m.effect(frame, node, f"{name}()", use)
    return wrapper


def wrap(m: Machine, node: ast.AST, name: str, atom: Atom) -> Value:
    """The wrapper around `atom`, with the same identity, as it has the same parameters."""
    m.facts.evidence.is_open = True
    if isinstance(atom, Unknown):
        prove(m, of(atom), "module")
        subject = atom.subject if atom.subject is not None else identity_at(m, node)
        atom = module_parts.proved(m, subject, m.worker_ident)
    elif isinstance(atom, Tensor) and atom.grad == "unknown" and atom.ident > 0:
        # An unknown object that was moved; only modules are wrapped.
        atom = Thing("model", "Module", atom.ident, m.worker_ident, atom.gpu)
    if isinstance(atom, Instance) and module_by_use(m, atom):
        gpu = m.read(atom.ident, "<gpu>")
        on_gpu = gpu is not None and True in gpu.constants()
    elif isinstance(atom, Thing) and atom.kind == "model" and atom.ident > 0:
        on_gpu = atom.gpu
    else:
        return UNKNOWN
    for ident in _parts(m, atom):
        m.store[ident, WRAPPED] = constant((atom.ident, m.place.turns.made.get(ident, 0)))
    m.store[atom.ident, AVERAGED] = constant(False)
    m.store[atom.ident, WRAPPER] = constant(name)
    m.store[atom.ident, ALONE] = NOTHING
    tops = {*_wrapped_modules(m), atom.ident}
    m.store[0, WRAPPED] = constant(tuple(sorted(tops)))
    parts = (("module", of(atom)),)
    return of(Thing("model", name, atom.ident, m.worker_ident, on_gpu, parts))


def _parts(m: Machine, atom: Thing | Instance, depth: int = 3) -> set[int]:
    """The identities of a module and its submodules."""
    found = {atom.ident}
    if depth:
        for _, value in m.fields(atom.ident):
            for part in inner(value, 2):
                if (isinstance(part, Thing) and part.kind == "model" and part.ident > 0) or (
                    isinstance(part, Instance) and part.cls.what == "torch"
                ):
                    found |= _parts(m, part, depth - 1)
    return found


def _wrapped_modules(m: Machine) -> tuple[int, ...]:
    """The modules wrapped on this path."""
    value = m.store.get((0, WRAPPED))
    found: set[int] = set()
    for tops in value.constants() if value is not None else ():
        found.update(tops if isinstance(tops, tuple) else ())
    return tuple(sorted(found))


def wrapper_call(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """``ddp(x)``."""
    modes = m.modes
    m.modes = replace(modes, averaged=True)
    result = m.call(frame, node, model.part("module") or UNKNOWN, args)
    m.modes = modes
    return _with_forward_pass(m, node, model.ident, result, by_wrapper=True)


def module_in(atom: Atom) -> Value | None:
    """The module that `atom` wraps."""
    return atom.part("module") if isinstance(atom, Thing) and atom.kind == "model" else None


def _with_forward_pass(
    m: Machine, node: ast.AST, top: int, result: Value, *, by_wrapper: bool
) -> Value:
    """`result`, with the forward pass of module `top` recorded in its tensors."""
    if not m.modes.grad:
        return result
    ident = m.ident_at(node, "by wrapper" if by_wrapper else "past wrapper")
    m.store[ident, AROUND] = constant(top)
    if by_wrapper:
        m.store[ident, WRAPPED] = constant(top)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.tracked:
            return tensor
        return replace(tensor, severed=tensor.severed | {ident})

    for atom in result.atoms:
        if isinstance(atom, Instance) and atom.cls.what in ("", "tuple"):  # holds the outputs
            for name, value in list(m.fields(atom.ident)):
                m.set_field(atom.ident, name, changed_tensors(value, change))
    return changed_tensors(result, change)


def direct_call(
    m: Machine, frame: Frame, node: ast.AST, ident: int, forward: Callable[[], Value]
) -> Value:
    """A direct `forward` of a module, bypassing its wrapper if it has one."""
    modes = m.modes
    if (0, WRAPPED) not in m.store or modes.averaged or not modes.grad:
        return forward()
    top = _wrapped_in(m, ident)
    if not top or _calls_wrapper(m, frame, node, top):
        return forward()
    m.modes = replace(modes, averaged=True)
    result = forward()
    m.modes = modes
    past = m.ident_at(node, "past wrapper")
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else "the module"
    wrapper = m.read(top, WRAPPER) or UNKNOWN
    place = _entry_site(m, frame, top)
    m.effect(frame, node, f"`{called}(...)`", WrapperBypass(past, wrapper=wrapper, place=place))
    return _with_forward_pass(m, node, top, result, by_wrapper=False)


def _calls_wrapper(m: Machine, frame: Frame, node: ast.AST, top: int) -> bool:
    """Whether `node` calls a name that stands for the wrapper of module `top`, if there is one:
    ``if distributed: model = DDP(model)``."""
    place = stored_at(m, frame, node.func) if isinstance(node, ast.Call) else None
    value = m.store.get(place) if place is not None else None
    return value is not None and any(
        module_in(it) is not None and it.ident == top for it in value.things("model")
    )


def _entry_site(m: Machine, frame: Frame, top: int) -> Site | None:
    """Where the program calls a method of module `top` that leads to its parts and methods in
    `frame`: these run equally behind the wrapper."""
    place, inside = None, frame
    for step in reversed(m.place.chain):
        owner = m.receiver(inside)
        if step.frame is None or not isinstance(owner, Instance):
            break
        if _wrapped_in(m, owner.ident) != top:
            break
        place, inside = step.site, step.frame
    return place


def step(m: Machine, frame: Frame, node: ast.AST, optimizer: Thing) -> None:
    """Record a step of the optimizer, possibly with gradients of this process alone."""
    for top in _steps_over(m, optimizer):
        past = _bypassing_forward(m, top)
        if past and _is(m, top, AVERAGED, False):
            m.effect(frame, node, "`optimizer.step()`", WrapperBypass(past, stepped=True))
        m.store[top, ALONE] = NOTHING
        m.store[top, AVERAGED] = constant(False)


def _bypassing_forward(m: Machine, top: int) -> int:
    """The forward pass that bypassed the wrapper and gave the gradients, on all paths or a known
    one; 0 if there is none."""
    value = m.read(top, ALONE) or NOTHING
    found = {
        choice.atom.value: choice.when
        for choice in value.choices
        if isinstance(choice.atom, Const) and choice.atom.value is not None
    }
    if len(found) != 1 or any(isinstance(atom, Unknown) for atom in value.atoms):
        return 0
    ((number, when),) = found.items()
    sure = len(value.choices) == 1 or bool(when)
    return number if sure and isinstance(number, int) else 0


def cleared(m: Machine, value: Value) -> None:
    """Record that gradients of an optimizer, module or parameter are cleared."""
    for atom in value.atoms:
        tops: Iterable[int] = ()
        if isinstance(atom, Tensor):
            tops = _wrapped_around(m, atom)
        elif isinstance(atom, Thing) and atom.kind == "optimizer":
            tops = _steps_over(m, atom)
        elif isinstance(atom, (Thing, Instance)) and (atom.ident, AVERAGED) in m.store:
            tops = (atom.ident,)
        for top in tops:
            m.store[top, ALONE] = NOTHING
            if not isinstance(atom, Tensor):  # of all parameters
                m.store[top, AVERAGED] = constant(False)


def _steps_over(m: Machine, optimizer: Thing) -> list[int]:
    """The wrapped modules whose parameters an optimizer has."""
    wrapped = _wrapped_modules(m)
    if not wrapped:
        return []
    found: set[int] = set()
    for atom in inner(optimizer.part("parameters") or UNKNOWN):
        if isinstance(atom, Tensor):
            found |= _wrapped_around(m, atom)
    return [top for top in wrapped if top in found]


def _wrapped_around(m: Machine, parameter: Tensor) -> set[int]:
    """The wrapped modules of a parameter."""
    tops = {_wrapped_in(m, ident) for ident in {parameter.ident, *parameter.sources}}
    return tops - {0}


def reduced(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A reduction among processes: possibly averaging gradients by hand."""
    target = args.get(0, "tensor", "tensors", "output") or UNKNOWN
    if all(map(_is_output, target.atoms)):
        return UNKNOWN  # neither gradients nor parameters
    for top in _wrapped_modules(m):
        m.store[top, AVERAGED] = constant(True)
    if any(isinstance(atom, Unknown) or _of_parameters(m, atom) for atom in inner(target)):
        m.effect(frame, node, f"`{name.rpartition('.')[2]}`", Collective("reduce", target))
    return UNKNOWN


def _is_output(atom: Atom) -> bool:
    """Whether `atom` is a model's output, or computed from it or from no gradient or parameter: a
    loss or count to be logged."""
    made_from = {atom.ident, *atom.sources} if isinstance(atom, Tensor) else set()
    return made_from == {0} or (OUTPUT in made_from and GRADIENT not in made_from)


def _of_parameters(m: Machine, atom: Atom) -> bool:
    """Whether `atom` is a parameter, its data, or its gradient."""
    return isinstance(atom, Tensor) and (
        atom.grad == "parameter"
        or atom.ident == GRADIENT
        or any(it and (it, WRAPPED) in m.store for it in (atom.ident, *atom.sources))
    )


def escape_to_unknown(m: Machine, name: str, args: Args) -> None:
    """Record what an unknown callee may do to modules and samplers among its arguments."""
    if (0, WRAPPED) not in m.store and (0, PASSED) not in m.store:
        return
    if name.rpartition(".")[2] in PURE_BUILTINS:
        return
    for value in args.values():
        for atom in inner(value, 2):
            if isinstance(atom, Thing) and atom.kind == "optimizer":
                tops = _steps_over(m, atom)
            elif isinstance(atom, (Thing, Instance, Tensor)) and atom.ident > 0:
                tops = [_wrapped_in(m, atom.ident)]
            else:
                continue
            for top in tops:
                if top:
                    m.store[top, AVERAGED] = constant(True)
            for sampler in samplers(m, of(atom)):
                m.store[sampler.ident, PASSED] = UNKNOWN
