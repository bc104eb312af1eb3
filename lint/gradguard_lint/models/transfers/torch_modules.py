"""torch: what its modules, losses and optimizers do."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import (
    NOTHING,
    OUTPUT,
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Instance,
    Items,
    Site,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.torch import STATEFUL, WEIGHTLESS
from gradguard_lint.models.transfers import distributed
from gradguard_lint.models.transfers.tensors import (
    as_written,
    combine,
    device_argument,
    gpu_touched,
    placed,
    tensors_in,
    worked,
)
from gradguard_lint.models.transfers.torch_tensors import freeze, is_frozen
from pytest_gradguard.records import replace


def model_call(m: Machine, frame: Frame, node: ast.AST, model: Thing, args: Args) -> Value:
    """``model(x)``."""
    if model.part("module") is not None:
        return distributed.wrapper_call(m, frame, node, model, args)
    return distributed.direct_call(
        m, frame, node, model.ident, lambda: _forward(m, frame, node, model, args)
    )


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
        worked(m, frame, node, [t for t, _ in found])
        if not found:
            return of(Tensor("torch", "unknown", False, m.worker_ident))
        value = combine(m, found, framework="torch")
        if any(v.is_unknown for v in args.values()) and m.modes.grad:
            value = value.map(
                lambda atom: (
                    of(replace(atom, grad="unknown"))
                    if isinstance(atom, Tensor) and atom.grad == "none"
                    else of(atom)
                )
            )
        return value
    if is_frozen(m, model.ident):
        tensor = replace(tensor, grad="none")
    found.append((tensor, frozenset()))
    worked(m, frame, node, [t for t, _ in found], heavy=True)
    weightless = model.name.rpartition(".")[2] in WEIGHTLESS
    if weightless:
        found = found[:-1]
        if not found:
            return of(Tensor("torch", "unknown", False, m.worker_ident))
    return combine(m, found, framework="torch").map(
        lambda atom: of(replace(atom, ident=OUTPUT)) if isinstance(atom, Tensor) else of(atom)
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
    """A method that every torch module has; None where it is none of these."""
    me = of(model)
    if name == "cuda":
        gpu_touched(m, frame, node, "`.cuda()`", "torch")
        return moved_model(m, model, True, m.site(frame, node))
    if name == "cpu":
        return moved_model(m, model, False)
    if name == "to":
        device = device_argument(args)
        on_gpu, when = placed(device, m)
        if on_gpu:
            gpu_touched(m, frame, node, f"`.to({as_written(node, device)})`", "torch")
            return moved_model(m, model, True, m.site(frame, node), when)
        if device is not None and any(
            isinstance(a, Const) or (isinstance(a, Thing) and not a.gpu) for a in device.atoms
        ):
            return moved_model(m, model, False)
        return me
    if name in ("parameters", "named_parameters", "buffers", "children", "modules"):
        born = getattr(model, "born", m.worker_ident)
        grad = "none" if is_frozen(m, ident) else "parameter"
        tensor = Tensor("torch", grad, gpu, born, ident, frozenset(), frozenset({ident}))
        if name == "named_parameters":
            return sequence(of(Items("tuple", (UNKNOWN, of(tensor)), of(tensor))))
        if name in ("children", "modules"):
            return UNKNOWN
        return sequence(of(tensor), "generator")
    if name == "state_dict":
        return of(Thing("state", "state_dict", ident, m.worker_ident, gpu))
    if name == "load_state_dict":
        m.effect(frame, "model-change", node, "`.load_state_dict()`", target=me)
        return UNKNOWN
    if name == "zero_grad":
        m.effect(frame, "zero-grad", node, "`.zero_grad()`", target=me)
        distributed.cleared(m, me)
        return NOTHING
    if name == "requires_grad_":
        flag = args.get(0, "requires_grad")
        freeze(m, model, flag is not None and flag.constants() == [False])
        return me
    if name in STATEFUL:
        return me
    return None


def moved_model(
    m: Machine, model: Atom, gpu: bool, site: Site | None = None, when: Conditions = NONE
) -> Value:
    """`model` on the GPU (under `when`), or off it: it moves in place, for all its names."""
    ident = model.ident if isinstance(model, (Thing, Instance)) else 0
    if ident <= 0:
        return of(replace(model, gpu=gpu)) if isinstance(model, Thing) else of(model)
    before = m.store.get((ident, "<gpu>")) or constant(isinstance(model, Thing) and model.gpu)
    now = guarded(constant(gpu), when)
    m.store[ident, "<gpu>"] = join((now, before)) if when else now
    if site is not None:
        m.program.moved[ident] = site
    return m.filtered(of(model))


def instance_on_gpu(m: Machine, instance: Instance) -> bool:
    """Whether an object of a torch class of the project was moved to a GPU."""
    value = m.read(instance.ident, "<gpu>")
    return value is not None and True in value.constants()


def optimizer_method(
    m: Machine, frame: Frame, node: ast.AST, optimizer: Thing, name: str, args: Args
) -> Value:
    """``optimizer.step()`` and the like."""
    if name == "step":
        m.effect(frame, "step", node, "`optimizer.step()`", target=of(optimizer))
        distributed.step(m, frame, node, optimizer)
    elif name == "zero_grad":
        m.effect(frame, "zero-grad", node, "`optimizer.zero_grad()`", target=of(optimizer))
        distributed.cleared(m, of(optimizer))
    elif name == "minimize":
        m.effect(frame, "step", node, "`optimizer.minimize()`", target=of(optimizer))
    elif name == "apply_gradients":
        m.effect(frame, "step", node, "`optimizer.apply_gradients()`", target=of(optimizer))
    elif name == "add_param_group":
        return NOTHING
    if args.positional and name == "step":
        for function in args.positional[:1]:
            if not function.is_unknown and not any(
                isinstance(a, (Tensor, Unknown)) for a in function.atoms
            ):
                m.call(frame, node, function, Args())
    return UNKNOWN
