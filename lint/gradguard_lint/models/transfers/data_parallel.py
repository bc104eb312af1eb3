"""Who averages gradients: wrapped modules, their forwards and backwards, and the steps.

Notes on a way live in the store, under the identity of what they are about: they are copied, joined
and conditioned with everything else. A rule asks only for what is certain.
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
"""Of a module, or a part of one: the module that DistributedDataParallel wraps."""

WRAPPER = "<wrapper>"
"""Of a wrapped module: the name of what wraps it."""

AVERAGED = "<averaged>"
"""Of a wrapped module: whether gradients may have been averaged since the last step."""

ALONE = "<one rank>"
"""Of a wrapped module: the forward past its wrapper that its gradients come from."""

AROUND = "<forward of>"
"""Of a forward: the wrapped module that it is of."""

WAYS = 64
"""How many ways are told apart by which modules their forwards are of: of more it is not known."""

TURNED_AWAY = words("print len isinstance hasattr id repr type")


def backward(
    m: Machine, frame: Frame, node: ast.AST, target: Value, inputs: Value | None = None
) -> None:
    """A backward from `target`: what of it is cut off, and whose gradients nobody averages.

    `inputs`: what ``autograd.grad`` is asked for the gradients of.
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
    go = partial(_credited, m, frame, node, wrapped, tensors, inputs, known=known)
    _split_by_value(m, forwards, go)


def _split_by_value(
    m: Machine, forwards: frozenset[int], go: Callable[[], None], most: int = WAYS
) -> None:
    """Let `go` run on each of the ways that tell of which modules `forwards` are, `most` of all."""
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


def _credited(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    wrapped: Iterable[int],
    tensors: list[Tensor],
    inputs: Value | None,
    *,
    known: bool,
) -> None:
    """Note of the `wrapped` modules what a backward from `tensors` does to their gradients.

    `known`: whether these are all that it may start from.
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
    """A backward from something unknown: it may average all gradients."""
    for top in _wrapped_modules(m):
        m.store[top, AVERAGED] = constant(True)


def returned_loss(m: Machine, frame: Frame, node: ast.AST, receiver: Atom, value: Value) -> None:
    """A method that Lightning calls returns its loss."""
    if not isinstance(receiver, Instance) or not is_lightning(m, receiver.cls):
        return
    m.effect(frame, node, "the loss", PossibleTraining("given", value))
    for atom in value.atoms:
        if isinstance(atom, Table):
            backward(m, frame, node, atom.get("loss") or UNKNOWN)
        elif isinstance(atom, Tensor):
            backward(m, frame, node, of(atom))


def is_lightning(m: Machine, cls: Class) -> bool:
    """Whether `cls` is a LightningModule."""
    registry = registry_of(m)
    return any(
        isinstance(base, External) and registry.canonical(base.name) == LIGHTNING
        for base in cls.outside()
    )


def _is(m: Machine, ident: int, note: str, wanted: object) -> bool:
    """Whether a note is known to say `wanted`, and nothing else."""
    value = m.read(ident, note)
    return value is not None and all(
        isinstance(atom, Const) and atom.value == wanted for atom in value.atoms
    )


def _numbers(m: Machine, ident: int, note: str) -> set[int]:
    """The numbers that a note may hold."""
    value = m.read(ident, note)
    return {it for it in value.constants() if isinstance(it, int)} if value is not None else set()


def _number(m: Machine, ident: int, note: str) -> int:
    """The number that a note is known to hold; 0 where it is not."""
    value = m.read(ident, note)
    only = value.only if value is not None else None
    number = only.value if isinstance(only, Const) else 0
    return number if isinstance(number, int) else 0


def _wrapped_in(m: Machine, ident: int) -> int:
    """The module, known by its number, that is wrapped and that this one is, or is a part of; 0
    where there is none.

    What the same expression has made since is another module, which nobody has wrapped yet.
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
    """``DistributedDataParallel(module)``: its forward, and no other, averages the gradients."""
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
    """The wrapper around `atom`; it goes by the same identity, as it has the same parameters."""
    m.facts.evidence.is_open = True
    if isinstance(atom, Unknown):
        prove(m, of(atom), "module")
        subject = atom.subject if atom.subject is not None else identity_at(m, node)
        atom = module_parts.proved(m, subject, m.worker_ident)
    elif isinstance(atom, Tensor) and atom.grad == "unknown" and atom.ident > 0:
        # Something unknown that was moved: what is wrapped is a module.
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
    """The identities of a module and the modules in it."""
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
    """The wrapped modules that there are on this way."""
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
    return _noted(m, node, model.ident, result, by_wrapper=True)


def module_in(atom: Atom) -> Value | None:
    """The module that `atom` wraps."""
    return atom.part("module") if isinstance(atom, Thing) and atom.kind == "model" else None


def _noted(m: Machine, node: ast.AST, top: int, result: Value, *, by_wrapper: bool) -> Value:
    """`result`, which tells by which forward of the module `top` it came."""
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
    """`forward` of a module by itself: past its wrapper, where it is known to have one."""
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
    place = _entered(m, frame, top)
    m.effect(frame, node, f"`{called}(...)`", WrapperBypass(past, wrapper=wrapper, place=place))
    return _noted(m, node, top, result, by_wrapper=False)


def _calls_wrapper(m: Machine, frame: Frame, node: ast.AST, top: int) -> bool:
    """Whether the name that `node` calls stands for the wrapper of the module `top`, where there is
    one: ``if distributed: model = DDP(model)``."""
    place = stored_at(m, frame, node.func) if isinstance(node, ast.Call) else None
    value = m.store.get(place) if place is not None else None
    return value is not None and any(
        module_in(it) is not None and it.ident == top for it in value.things("model")
    )


def _entered(m: Machine, frame: Frame, top: int) -> Site | None:
    """Where the program calls a method of the module `top`, which then calls parts and methods of
    it in `frame`: these are the same behind the wrapper."""
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
    """An optimizer steps: over gradients of this process alone?"""
    for top in _steps_over(m, optimizer):
        past = _on_its_way(m, top)
        if past and _is(m, top, AVERAGED, False):
            m.effect(frame, node, "`optimizer.step()`", WrapperBypass(past, stepped=True))
        m.store[top, ALONE] = NOTHING
        m.store[top, AVERAGED] = constant(False)


def _on_its_way(m: Machine, top: int) -> int:
    """The one forward past the wrapper that gave the gradients, on all ways here or on a known
    one of them; 0 where there is none."""
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
    """The gradients of an optimizer, a module or a parameter are cleared."""
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
    """The wrapped modules that a parameter belongs to."""
    tops = {_wrapped_in(m, ident) for ident in {parameter.ident, *parameter.sources}}
    return tops - {0}


def reduced(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A reduction among processes: perhaps of gradients, by hand."""
    target = args.get(0, "tensor", "tensors", "output") or UNKNOWN
    if all(map(_is_output, target.atoms)):
        return UNKNOWN  # no gradient, and no parameter
    for top in _wrapped_modules(m):
        m.store[top, AVERAGED] = constant(True)
    if any(isinstance(atom, Unknown) or _of_parameters(m, atom) for atom in inner(target)):
        m.effect(frame, node, f"`{name.rpartition('.')[2]}`", Collective("reduce", target))
    return UNKNOWN


def _is_output(atom: Atom) -> bool:
    """Whether `atom` is what a model gave, or made from that, or from no gradient or parameter at
    all: a loss, or a count, to be logged."""
    made_from = {atom.ident, *atom.sources} if isinstance(atom, Tensor) else set()
    return made_from == {0} or (OUTPUT in made_from and GRADIENT not in made_from)


def _of_parameters(m: Machine, atom: Atom) -> bool:
    """Whether `atom` is a parameter, its data, or its gradient."""
    return isinstance(atom, Tensor) and (
        atom.grad == "parameter"
        or atom.ident == GRADIENT
        or any(it and (it, WRAPPED) in m.store for it in (atom.ident, *atom.sources))
    )


def handed_over(m: Machine, name: str, args: Args) -> None:
    """Something unknown is called: what it may do to the modules and samplers that it is given."""
    if (0, WRAPPED) not in m.store and (0, PASSED) not in m.store:
        return
    if name.rpartition(".")[2] in TURNED_AWAY:
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
