"""torch: modules, losses and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.payloads import (
    Compute,
    Draw,
    ModelChange,
    ModelUse,
    OptimizerChange,
    OptimizerStep,
)
from gradguard_lint.domain.shapes import inner, sequence
from gradguard_lint.domain.values import (
    NOTHING,
    OUTPUT,
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Instance,
    Items,
    Method,
    Site,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.torch_words import LAYERS, POOLS, STATEFUL, WEIGHTLESS
from gradguard_lint.models.transfers import data_parallel, frozen, module_parts, own_gradients
from gradguard_lint.models.transfers.devices import (
    as_written,
    cuda_argument,
    device_argument,
    gpu_placement,
    gpu_touched,
)
from gradguard_lint.models.transfers.tensor_uses import value_used, worked, written
from gradguard_lint.models.transfers.tensors import (
    certainly,
    combine,
    each_tensor,
    tensors_in,
    unsure_of_grad,
)
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.payloads import Extent


def model_call(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """``model(x)``."""
    if model.part("module") is not None:
        return data_parallel.wrapper_call(m, frame, node, model, args)
    return data_parallel.direct_call(
        m, frame, node, model.ident, lambda: forward(m, frame, node, model, args)
    )


def forward(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """The result of calling a library's module, without its wrapper."""
    value = _forward(m, frame, node, model, args)
    return certainly(value) if _gives_one(m, model) else value


def _gives_one(m: Machine, module: Atom) -> bool:
    """Whether the library's `module` returns one tensor for any arguments."""
    home, _, name = module.name.rpartition(".") if isinstance(module, Thing) else ("", "", "")
    if home != "torch.nn" or not isinstance(module, Thing):
        return False
    if name == "Sequential" or m.read(module.ident, frozen.ALL_PARTS) is not None:
        *_, last = frozen.all_parts(m, module.ident) or [UNKNOWN]
        return all(_gives_one(m, atom) for atom in last.atoms)
    return name in LAYERS or (name in POOLS and module.part("indices") is None)


def _forward(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    found = tensors_in(args.values())
    tensor = Tensor(
        "torch",
        "parameter",
        model.gpu,
        m.worker_ident,
        model.ident,
        frozenset(),
        frozenset({model.ident}),
        small=model.small,
    )
    if model.kind == "loss":
        worked(m, frame, node, found)
        if not found:
            return of(Tensor("torch", "unknown", False, m.worker_ident))
        value = combine(m, found, framework="torch")
        if any(v.is_unknown for v in args.values()) and m.modes.grad:
            value = each_tensor(value, unsure_of_grad)
        return value
    if model.part("statistics") is not None:
        now = training(m, model.ident)
        run = ModelUse(of(model), "run" if now is None else "train" if now else "eval")
        m.effect(frame, node, run.does, run)
    else:
        runs(m, frame, node, model)
    if model.part("in-place") is not None and args.positional:
        written(m, frame, node, f"`{model.name.rpartition('.')[2]}`", args.positional[0])
    if model.part("drops") is not None and training(m, model.ident):
        m.effect(frame, node, "dropout in training mode", Draw("torch"))
    if model.name.rpartition(".")[2] not in WEIGHTLESS:
        found.extend(frozen.parameters_of(m, model.ident, tensor))
    worked(m, frame, node, found or [(tensor, NONE)], heavy=True)
    if not found:
        return of(Tensor("torch", "unknown", False, m.worker_ident))
    value = combine(m, found, framework="torch")
    return each_tensor(value, lambda it: replace(it, ident=OUTPUT))


def runs(m: Machine, frame: Frame, node: ast.AST, module: Thing | Instance) -> None:
    """Record that the parent calls `module`, which may keep statistics."""
    if m.place.worker is None and module.ident > 0:
        m.effect(frame, node, "run", ModelUse(of(module), "run"))


def used_by(m: Machine, frame: Frame, node: ast.AST, name: str, given: Iterable[Value]) -> None:
    """Record an unknown call that, by its name, saves or runs its module argument: ``evaluate(net,
    data)``."""
    saves = name.startswith(_SAVES)
    if not saves and not name.startswith(_RUNS):
        return
    for atom in {atom for value in given for atom in value.atoms}:
        module = module_of(atom)
        if module is not None and module is atom and saves:
            m.effect(frame, node, f"`{name}()`", ModelUse(of(module)))
        elif module is not None and module is atom:
            runs(m, frame, node, module)


def keep_parts(m: Machine, instance: Instance, args: Args) -> None:
    """Record the arguments of a container's ``__init__`` as its submodules."""
    for number, value in enumerate((*args.positional, *([args.rest] if args.rest else ()))):
        if any(isinstance(atom, (Thing, Instance, Items, Table)) for atom in value.atoms):
            m.set_field(instance.ident, str(number), value)


def about_parts(m: Machine, instance: Instance) -> tuple[tuple[str, Value], ...]:
    """Traits of the submodules that a container calls in turn."""
    parts = [part for _, value in m.fields(instance.ident) for part in inner(value)]
    return tuple(
        (what, constant(True))
        for what in ("statistics", "drops")
        if any(does(m, part, what) for part in parts)
    )


def does(m: Machine, module: Atom, what: str, depth: int = 4) -> bool:
    """Whether a module in training mode keeps ``statistics``, or ``drops``: a library module by
    itself, a project module by a certain part in that mode."""
    if isinstance(module, Thing):
        return module.kind == "model" and module.part(what) is not None
    if module_of(module) is not module or not isinstance(module, Instance) or not depth:
        return False
    if m.find_in_class(module.cls, "train") is not None:
        return False  # it may leave some parts unchanged
    return any(
        all(
            not choice.when
            and training(m, getattr(choice.atom, "ident", 0))
            and does(m, choice.atom, what, depth - 1)
            for choice in m.filtered(value).choices
        )
        for _, value in m.fields(module.ident)
    )


def model_method(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    model: Atom,
    ident: int,
    gpu: bool,
    name: str,
    args: Args,
) -> Value | None:
    """A method that every torch module has; None for others."""
    me = of(model)
    if name == "cuda":
        named = cuda_argument(args)
        on_gpu, when = gpu_placement(named, m)
        gpu_touched(m, frame, node, "`.cuda()`", "torch", named, when)
        return moved_model(m, model, on_gpu, m.site(frame, node) if on_gpu else None, when)
    if name == "cpu":
        return moved_model(m, model, False)
    if name in ("to", "to_empty"):
        device = device_argument(args)
        on_gpu, when = gpu_placement(device, m)
        if on_gpu:
            what = f"`.{name}({as_written(node, device)})`"
            gpu_touched(m, frame, node, what, "torch", device, when)
            return moved_model(m, model, True, m.site(frame, node), when)
        if device is not None and any(
            isinstance(a, Const) or (isinstance(a, Thing) and not a.gpu) for a in device.atoms
        ):
            return moved_model(m, model, False)
        if device is not None:
            module_parts.moved(m, model, away=True)
        return me
    if name == "backward" and args.positional:  # modules have none: an engine with the module
        return own_gradients.goes_backward(m, frame, node, "`.backward()`", args.positional[0])
    if name == "share_memory":
        m.program.shared.add(ident)
        if not m.place.turns.depth:
            m.program.shared_once.add(ident)
        if not gpu and does(m, model, "copied"):
            copies = Compute("torch", heavy=True, threads_only=True)
            m.effect(frame, node, "`.share_memory()`", copies)
    if name != "eval":
        used_by(m, frame, node, name, [me])
    if name in ("buffers", "named_buffers"):
        kept = of(buffer_of(m, ident))
        if name == "named_buffers":
            return sequence(of(Items("tuple", (UNKNOWN, kept), kept)))
        return sequence(kept, "generator")
    if name == "register_buffer" and isinstance(model, Instance):
        buffer = args.constant(0, "name")
        if isinstance(buffer, str):
            m.set_field(ident, buffer, of(buffer_of(m, ident)))
        return NOTHING
    if name == "get_submodule":
        return module_parts.by_path(m, frame, node, model, args.get(0, "target") or UNKNOWN)
    if name in module_parts.GIVES:
        return module_parts.given(m, model, name)
    if name in ("parameters", "named_parameters"):
        return all_of(m, node, name, _parameter_of(m, model, ident, gpu))
    if name == "state_dict":
        m.effect(frame, node, "`.state_dict()`", ModelUse(me, "state"))
        if args.constant(2, "keep_vars") is True:
            parameter = of(_parameter_of(m, model, ident, gpu))
            return of(Table((), join((parameter, of(buffer_of(m, ident))))))
        return of(Thing(STATE, "state_dict", ident, m.worker_ident, gpu))
    if name == "load_state_dict":
        strict = args.get(1, "strict")
        state = args.get(0, "state_dict") or UNKNOWN
        value_used(m, frame, node, [m.filtered(state)])
        m.effect(
            frame,
            node,
            "`.load_state_dict()`",
            ModelChange(
                me, state, extent="whole" if strict is None else _AS_FAR.get(strict.constant, "")
            ),
        )
        return UNKNOWN
    if name == "zero_grad":
        own_gradients.cleared(m, frame, node, "`.zero_grad()`", me)
        return NOTHING
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        frozen.freeze(m, ident, frozen.frozen_by(m, flag or constant(True)))
        return me
    if name in ("train", "eval"):
        flag = args.get(0, "mode") or constant(True)
        set_training(m, model, flag if name == "train" else constant(False))
    if name == "apply":
        frozen.as_made(m, ident)
        set_training(m, model, UNKNOWN)  # the function may change it for any part
        m.call(frame, node, args.get(0, "fn") or UNKNOWN, Args([module_parts.each(model)]))
    if name in STATEFUL:
        return me
    return None


def _parameter_of(m: Machine, model: Atom, ident: int, gpu: bool) -> Tensor:
    """The tensor that represents the parameters of `model`."""
    born = getattr(model, "born", m.worker_ident)
    tensor = Tensor("torch", "parameter", gpu, born, ident, frozenset(), frozenset({ident}))
    tensor, _ = frozen.parameters_of(m, ident, tensor)[-1]
    frozen.as_made(m, ident)
    return tensor


_SAVES = ("save", "push_to")
"""Prefixes of functions that save a module."""

_RUNS = ("eval", "generate", "infer", "predict", "score", "test", "valid")
"""Prefixes of functions that run a module on data."""

_AS_FAR: dict[object, Extent] = {True: "whole", False: "partial"}
"""The extent to which a loaded state replaces a module's, by `strict`."""


def all_of(m: Machine, node: ast.AST, name: str, parameter: Tensor) -> Value:
    """The result of `parameters` and `named_parameters`."""
    if name == "named_parameters":
        called = unknown(("parameter-name", m.ident_at(node)))
        return sequence(of(Items("tuple", (called, of(parameter)), of(parameter))))
    return sequence(of(parameter), "generator")


STATE = "state"
"""The kind of the result of ``state_dict()``."""


def state_item(state: Thing) -> Value:
    """An item of a state, on the device of its module."""
    return of(Tensor("torch", "none", state.gpu, state.born))


def state_method(
    m: Machine, frame: Frame, node: ast.AST, state: Thing, name: str, args: Args
) -> Value | None:
    """A method of a state, which is a dict."""
    item = state_item(state)
    if name == "items":
        return sequence(of(Items("tuple", (UNKNOWN, item), join((UNKNOWN, item)))))
    if name == "values":
        return sequence(item)
    if name == "copy":
        return of(state)
    return item if name in ("get", "pop") else None


def buffer_of(m: Machine, owner: int) -> Tensor:
    """A buffer of the module `owner`."""
    ident = m.ident_of(("buffers", owner))
    m.program.buffers[ident] = owner
    return Tensor("torch", "none", False, m.worker_ident, ident)


TRAINING = "<training>"
"""Store key: whether a module is in training mode."""


def training(m: Machine, ident: int) -> bool | None:
    """Whether the module is in training mode, which is the default; None if unknown."""
    flag = m.read(ident, TRAINING)
    if flag is None:
        return True
    return flag.constant if isinstance(flag.constant, bool) else None


def set_training(m: Machine, module: Atom, flag: Value, depth: int = 4) -> None:
    """Record the training mode of a module and its submodules."""
    if isinstance(module, (Thing, Instance)) and module.ident > 0:
        m.store[module.ident, TRAINING] = flag
    if isinstance(module, Instance) and depth:
        for _, value in list(m.fields(module.ident)):
            for part in inner(value):
                if module_of(part) is part:
                    set_training(m, part, flag, depth - 1)


def returned(
    m: Machine,
    atom: Thing | Instance,
    call: ParallelCall,
    received: Callable[[Value], Value],
    seen: set[int],
) -> Atom:
    """A library or project object as returned from a worker: modules are new objects."""
    if isinstance(atom, Thing) and atom.kind == "optimizer":
        # It has the returned parameters, which are unknown.
        return replace(atom, born=0, ident=_copy(m, atom.ident, call), parts=())
    if atom.ident <= 0 or (isinstance(atom, Thing) and module_of(atom) is not atom):
        return replace(atom, born=0) if isinstance(atom, Thing) else atom
    ident = _copy(m, atom.ident, call)
    if ident == atom.ident:
        return atom
    copy = replace(atom, born=0, ident=ident)
    if ident in seen:  # already seen; it may contain itself
        return copy
    seen.add(ident)
    if module_of(atom) is atom:
        m.program.returned[ident] = (call.ident, atom.ident)
    after = m.place.ended.task_state or m.state
    here, m.state = m.state, after
    state, place = frozen.state_of(m, atom.ident), m.place_of(atom.ident)
    m.state = here
    for name in ("<gpu>", frozen.FROZEN, TRAINING):
        note = state if name == frozen.FROZEN else after.store.get((atom.ident, name))
        if note is not None:
            m.store[ident, name] = note
    for name in (
        list(m.facts.attribute_names.get(atom.ident, ())) if isinstance(atom, Instance) else ()
    ):
        value = after.store.get((atom.ident, name))
        if value is not None:
            m.set_field(ident, name, received(value))
    if place is not None:
        m.moved(ident, place)
    return copy


def _copy(m: Machine, ident: int, call: ParallelCall) -> int:
    """The identity of the returned copy of `ident`: the same for a copy of a copy."""
    first = m.program.returned.get(ident)
    original = first[1] if first is not None and first[0] == call.ident else ident
    return m.ident_of(("returned", call.ident, original))


def module_of(atom: Atom) -> Thing | Instance | None:
    """The module that `atom` is, or is a part of: ``net[0]``, ``net.fc``."""
    while isinstance(atom, Method):
        atom = atom.receiver
    if isinstance(atom, Thing):
        return atom if atom.kind == "model" else None
    return atom if isinstance(atom, Instance) and atom.cls.what == "torch" else None


def moved_model(
    m: Machine, model: Atom, gpu: bool, site: Site | None = None, when: Conditions = NONE
) -> Value:
    """`model` moved to the GPU (under `when`) or off it, in place."""
    ident = model.ident if isinstance(model, (Thing, Instance)) else 0
    if ident <= 0:
        return of(replace(model, gpu=gpu)) if isinstance(model, Thing) else of(model)
    before = m.store.get((ident, "<gpu>")) or constant(isinstance(model, Thing) and model.gpu)
    now = guarded(constant(gpu), when)
    m.store[ident, "<gpu>"] = join((now, before)) if when else now
    if site is not None:
        m.moved(ident, site)
    module_parts.moved(m, model, away=gpu)
    return m.filtered(of(model))


def instance_on_gpu(m: Machine, instance: Instance) -> bool:
    """Whether an object of a project's torch class was moved to a GPU."""
    value = m.read(instance.ident, "<gpu>")
    return value is not None and True in value.constants()


LOCKS = "locks"
"""The part of an optimizer for its argument `use_locking`."""


def optimizer_method(
    m: Machine, frame: Frame, node: ast.AST, optimizer: Thing, name: str, args: Args
) -> Value:
    """``optimizer.step()`` and other methods."""
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else f"optimizer.{name}"
    what = f"`{called}()`"
    if name == "step":
        closure = args.get(0, "closure")
        if closure is not None and not closure.is_none:
            if any(isinstance(atom, Unknown) for atom in closure.atoms):
                own_gradients.settle(m, of(optimizer))  # it may clear them
            m.call(frame, node, closure, Args())
        own_gradients.used(m, frame, OptimizerStep, node, what, of(optimizer))
        for atom in inner(optimizer.part("parameters") or UNKNOWN):
            if isinstance(atom, Tensor) and atom.grad != "parameter":
                written(m, frame, node, what, of(atom))
        data_parallel.step(m, frame, node, optimizer)
    elif name == "zero_grad":
        own_gradients.cleared(m, frame, node, what, of(optimizer))
    elif name in ("minimize", "apply_gradients"):
        modes, locks = m.modes, optimizer.part(LOCKS)
        if locks is not None and locks.constants() == [True]:
            m.modes = replace(modes, locked=True)
        m.effect(frame, node, what, OptimizerStep(of(optimizer)))
        m.modes = modes
    elif name == "add_param_group":
        m.effect(frame, node, f"`.{name}()`", OptimizerChange(of(optimizer)))
        return NOTHING
    if args.positional and name == "step":
        for function in args.positional[:1]:
            if not function.is_unknown and not any(
                isinstance(a, (Tensor, Unknown)) for a in function.atoms
            ):
                m.call(frame, node, function, Args())
    return UNKNOWN
