"""torch: calls of submodules and their methods."""

from __future__ import annotations

import ast

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import items, sequence
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Items,
    Method,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.torch_words import HOOKS, MODULE_METHODS, PARAMETERS, STATEFUL
from gradguard_lint.models.transfers import frozen, module_parts, torch_modules
from gradguard_lint.models.transfers.torch_tensors import hooked, tensor_method, unknown_method
from gradguard_lint.words import words
from pytest_gradguard.records import replace


def called(m: Machine, frame: Frame, node: ast.AST, part: Atom, args: Args) -> Value | None:
    """A call of a part of a module; None if the part is unknown."""
    modules = module_parts.modules_of_part(m, part)
    whole = torch_modules.module_of(part)
    if modules is None and isinstance(whole, Thing) and _is_module(m, part):
        model = Thing("model", "Module", whole.ident, whole.born, whole.gpu)
        return torch_modules.model_call(m, frame, node, model, args)
    if modules is None or whole is None or len(modules.atoms) > 1:
        return None

    def of_whole(atom: Atom) -> Value:
        if not isinstance(atom, Tensor) or not atom.tracked:
            return of(atom)
        return of(replace(atom, sources=atom.sources | {whole.ident}))

    return m.call(frame, node, modules, args).map(of_whole)


def _is_module(m: Machine, part: Atom) -> bool:
    return m.facts.evidence.is_proved(_place_of(part), "module")


def _place_of(part: Atom) -> Key:
    """The key of a part's place in its module."""
    names = []
    while isinstance(part, Method):
        names.append(part.name)
        part = part.receiver
    return ("part", getattr(part, "ident", 0), *names)


def each_called(m: Machine, frame: Frame, node: ast.AST, whole: Atom, args: Args) -> Value:
    """A call of an unknown submodule of `whole`."""
    if not isinstance(whole, (Instance, Thing)):
        return UNKNOWN
    gpu = torch_modules.instance_on_gpu(m, whole) if isinstance(whole, Instance) else whole.gpu
    model = Thing("model", "Module", whole.ident, whole.born, gpu)
    return torch_modules.forward(m, frame, node, model, args)


def method(
    m: Machine, frame: Frame, node: ast.AST, part: Method, name: str, args: Args
) -> Value | None:
    """A method of a part of a module, or of its parameter; None if it is neither."""
    whole = torch_modules.module_of(part)
    if whole is None:
        return None
    if name in MODULE_METHODS and part.name not in PARAMETERS:
        m.facts.evidence.prove(_place_of(part), "module")
    subject = m.facts.evidence.subjects.get(whole.ident)
    if name == "reset_running_stats" and subject is not None:
        m.facts.evidence.prove(subject, "statistics", m.assumed.facts)
    if name in ("train", "eval"):  # it counts as the module's
        torch_modules.set_training(m, whole, UNKNOWN)
        return of(part)
    if name in HOOKS:
        parameter = Tensor("torch", "parameter", ident=whole.ident)
        return hooked(m, frame, node, parameter, args)
    if name.endswith("_") and name != "requires_grad_":
        own = part.receiver if part.name == "data" else part
        if isinstance(own, Method) and own.name in PARAMETERS:
            parameter = Tensor("torch", "none", _is_on_gpu(whole), whole.born, whole.ident)
            return tensor_method(m, frame, node, parameter, name, args)
    modules = module_parts.modules_of_part(m, part)
    if name == "requires_grad_":
        state = frozen.frozen_by(m, args.get(0, "requires_grad") or constant(True))
        _frozen(m, whole, modules if part.name not in PARAMETERS else None, state)
        return of(part)
    if name in ("parameters", "named_parameters"):
        return _parameters(m, node, part, whole, modules, name)
    only = modules.only if modules is not None else None
    if isinstance(only, (Instance, Thing)) and name in (*module_parts.GIVES, *_MOVES, "apply"):
        return torch_modules.model_method(
            m, frame, node, only, only.ident, _is_on_gpu(whole), name, args
        )
    if name in _MOVES:
        unknown_method(m, frame, node, name, args)
        return of(part)
    return None


def _is_on_gpu(module: Instance | Thing) -> bool:
    """Whether it is a library module that is known to be on the GPU."""
    return isinstance(module, Thing) and module.gpu


_MOVES = words("cpu cuda to to_empty")
"""Methods that move a module to another device."""


def _frozen(m: Machine, whole: Instance | Thing, modules: Value | None, state: Value) -> None:
    """Freeze or unfreeze some modules in `whole`; None: unknown ones."""
    if modules is None:
        frozen.freeze(m, whole.ident, UNKNOWN)
    for part in modules.atoms if modules is not None else ():
        if isinstance(part, (Instance, Thing)):
            frozen.freeze(m, part.ident, state)


def _parameters(
    m: Machine,
    node: ast.AST,
    part: Method,
    whole: Instance | Thing,
    modules: Value | None,
    name: str,
) -> Value:
    """Some of the parameters of `whole`, separate from others."""
    own = Tensor("torch", "parameter", _is_on_gpu(whole), whole.born, m.ident_of(part))
    found = []
    for atom in modules.atoms if modules is not None else ():
        if isinstance(atom, (Instance, Thing)) and frozen.weighted(atom):
            frozen.as_made(m, atom.ident)
            sources = frozenset({whole.ident, atom.ident})
            tensor = replace(own, ident=atom.ident, sources=sources)
            found.append(frozen.parameters_of(m, atom.ident, tensor)[-1][0])
    if modules is not None and not found:
        return items("generator", ())
    if not found:
        tensor = replace(own, sources=frozenset({whole.ident}))
        found = [frozen.parameters_of(m, whole.ident, tensor)[-1][0]]
    return join([torch_modules.all_of(m, node, name, tensor) for tensor in found])


def each_method(
    m: Machine, frame: Frame, node: ast.AST, whole: Instance | Thing, name: str, args: Args
) -> Value | None:
    """A method of each submodule of `whole`: done to each, it is done to the whole."""
    if name in ("train", "eval"):
        torch_modules.set_training(m, whole, UNKNOWN)
    elif name in ("parameters", "named_parameters", *_MOVES):
        return torch_modules.model_method(
            m, frame, node, whole, whole.ident, _is_on_gpu(whole), name, args
        )
    elif name == "requires_grad_":
        flag = args.get(0, "requires_grad") or constant(True)
        frozen.freeze(m, whole.ident, frozen.frozen_by(m, flag))
        return module_parts.each(whole)
    elif name in module_parts.GIVES:
        return module_parts.given(m, whole, "modules" if name[:5] != "named" else "named_modules")
    return None


def of_list(
    m: Machine, frame: Frame, node: ast.AST, held: Items | Table, name: str, args: Args
) -> Value | None:
    """A method of a list or dict of modules that is a module itself; otherwise None."""
    if name not in _OF_LISTS:
        return None
    if name == "children":
        return sequence(element_of(m, of(held)), "generator") if isinstance(held, Items) else None
    found = []
    for part in frozen.modules_in(m, of(held)):
        if isinstance(part, (Instance, Thing)):
            given = torch_modules.model_method(
                m, frame, node, part, part.ident, _is_on_gpu(part), name, args
            )
            found.append(given or UNKNOWN)
    if not found:
        return None
    if name in STATEFUL:
        return of(held)
    return sequence(join([element_of(m, value) for value in found]), "generator")


_OF_LISTS = words(
    "apply children eval modules named_modules named_parameters parameters requires_grad_ train"
)
"""Methods of lists and dicts of modules that call the same of each module."""


def frozen_behind(m: Machine, atom: Atom) -> None:
    """Record that ``requires_grad`` is set on an unknown parameter of some module."""
    if isinstance(atom, Unknown):
        whole = module_parts.behind(atom.key)
    else:
        whole = torch_modules.module_of(atom)
        modules = (
            module_parts.modules_of_part(m, atom.receiver) if isinstance(atom, Method) else None
        )
        only = modules.only if modules is not None else None
        whole = only if isinstance(only, (Instance, Thing)) else whole
    if whole is not None:
        frozen.freeze(m, whole.ident, UNKNOWN)
