"""Attributes and items of library objects, and writes to them."""

from __future__ import annotations

import ast

from gradguard_lint.domain.payloads import GradWrite, OptimizerChange, Write
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Class,
    External,
    Frame,
    Function,
    Generator,
    Instance,
    Method,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend, takes_all
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.python import LAST_BASES
from gradguard_lint.models.torch_words import BUFFERS, MODULE_METHODS, PARAMETERS
from gradguard_lint.models.transfers import (
    arrays,
    attribute_tables,
    collectives,
    environment,
    estimators,
    frozen,
    optimizers,
    options,
    own_gradients,
    part_calls,
    tensorflow_calls,
    torch_modules,
    torch_tensors,
    unknown_calls,
)
from gradguard_lint.models.transfers.kinds import KERAS_KINDS
from gradguard_lint.models.transfers.tensor_uses import written
from gradguard_lint.models.transfers.tensors import derived
from pytest_gradguard.records import replace


def refuses_pickling(atom: Atom, *, standard: bool) -> bool:
    """Whether `atom` certainly can't be pickled: running generators, TensorFlow graphs and their
    holders; by the `standard` pickler also thread locks and functions without an importable name.
    """
    if isinstance(atom, Generator):
        return isinstance(atom.function, Function)
    if isinstance(atom, Function):
        return standard and (isinstance(atom.node, ast.Lambda) or _is_nested(atom))
    if not isinstance(atom, Thing):
        return False
    return atom.kind in ("session", "graph") or (
        standard and atom.kind == "lock" and atom.name.startswith("threading.")
    )


def _is_nested(function: Function) -> bool:
    """Whether a function isn't importable by name: it is nested, and not declared global."""
    around = function.frame.function
    if around is None or function.owner is not None or function.wraps is not None:
        return False
    assert not isinstance(function.node, ast.Lambda)
    return not function.node.decorator_list and not any(
        isinstance(part, ast.Global) and function.name in part.names
        for part in ast.walk(around.node)
    )


def attribute(m: Machine, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
    """``atom.name`` of a tensor or library object."""
    if isinstance(atom, Tensor):
        if atom.framework == "torch":
            return torch_tensors.tensor_attribute(m, frame, node, atom, name)
        if name in ("shape", "dtype", "ndim", "size"):
            return UNKNOWN
        if name == "T":
            return of(replace(derived(m, atom), strided=True))
        return of(Method(atom, name))
    assert isinstance(atom, Thing)
    kind = atom.kind
    if kind == "super":
        return _super_attribute(m, frame, node, atom, name)
    if kind == "namespace":
        return options.namespace_attribute(m, atom, name)
    if kind == "device":
        if name == "type":
            return constant(atom.name.split(":")[0])
        return UNKNOWN
    if kind == "model":
        wrapped = atom.part(name) if name == "module" else None
        if wrapped is not None:
            return wrapped
        if name == "grad":
            return UNKNOWN
        if name == "training" and atom.name.startswith("torch.nn."):
            return m.read(atom.ident, torch_modules.TRAINING) or constant(True)
        if name in BUFFERS and atom.part("statistics") is not None:
            return of(torch_modules.buffer_of(m, atom.ident))
        if name in PARAMETERS:
            return of(
                Tensor("torch", "parameter", atom.gpu, atom.born, atom.ident, small=atom.small)
            )
    if kind in KERAS_KINDS and name in tensorflow_calls.VARIABLES:
        return tensorflow_calls.variables(m, atom, name)
    changes = kind == "optimizer" and name == "param_groups"
    if changes and optimizers.other_parameters(node, m.place.statement):
        m.effect(frame, node, f"`.{name}`", OptimizerChange(of(atom)))
    if kind == "parallel" and name == "n_jobs":
        return atom.part("n_jobs") or UNKNOWN
    if kind == "dask-frame" and name == "values":
        return of(Tensor("dask"))
    if kind == "frame" and name not in arrays.FRAMES:
        return unknown(("attr", ("node", id(node)), name))
    return of(Method(atom, name))


def _super_attribute(m: Machine, frame: Frame, node: ast.AST, atom: Thing, name: str) -> Value:
    owner = atom.part("class")
    receiver = atom.part("self")
    cls = owner.only if owner is not None else None
    me = receiver.only if receiver is not None else None
    if isinstance(cls, Class) and me is not None:
        mine = me.cls if isinstance(me, Instance) else me if isinstance(me, Class) else cls
        line = (mine, *mine.above)
        after = line[line.index(cls) + 1 :] if cls in line else cls.above
        if any(isinstance(it, External) and it.name not in LAST_BASES for it in cls.bases):
            after = tuple(it for it in after if it in cls.above)  # others come after that
        value = m.find_in(after, name)
        if value is not None:
            bound: Value = m.bind(frame, node, value, me)
            return bound
        if isinstance(me, Instance):
            return inherited_attribute(m, frame, node, me, name)
    return UNKNOWN


def inherited_attribute(
    m: Machine, frame: Frame, node: ast.AST, atom: Instance, name: str
) -> Value:
    """An attribute defined by neither the object nor its project classes."""
    if name == "__dict__":
        return attribute_tables.attributes_of(atom)
    if name == "training" and atom.cls.what == "torch":
        mode = m.read(atom.ident, torch_modules.TRAINING)
        return mode if mode is not None else unknown(("attr", ("instance", atom.ident), name))
    if name == "param_groups" and atom.cls.what == optimizers.KIND:
        return optimizers.inherited(m, atom).map(lambda it: m.attribute(frame, node, of(it), name))
    if atom.cls.what == "keras" and name in tensorflow_calls.VARIABLES:
        return tensorflow_calls.variables(m, atom, name)
    record = atom.cls.what == attribute_tables.RECORD
    if atom.cls.what and (not record or name in attribute_tables.RECORD_METHODS):
        return of(Method(atom, name))
    if name in MODULE_METHODS and frozen.module_by_use(m, atom):
        return of(Method(atom, name))
    registry = registry_of(m)
    for base in atom.cls.outside():
        full = f"{base.name}.{name}" if isinstance(base, External) else ""
        if full in registry.exact:
            return of(External(full))
        if isinstance(base, External) and name == "__init__":
            row = registry.row(registry.canonical(base.name))
            if row is not None and row.does == "nothing":
                return of(base)  # creating one does nothing
    return unknown(("attr", ("instance", atom.ident), name))


def set_attribute(
    m: Machine, frame: Frame, target: ast.Attribute, atom: Atom, value: Value
) -> Value | None:
    """``atom.name = value``; the new `atom`, if it changed."""
    if isinstance(atom, Instance):
        asked = m.program.buffers or m.program.returned
        old = m.read(atom.ident, target.attr) if asked else None
        if old is not None and any(tensor.ident in m.program.buffers for tensor in old.tensors()):
            what = f"`{ast.unparse(target)} = ...`"
            m.effect(frame, target, what, Write(old))
        if old is not None and m.place.worker is None:
            for ident in m.program.returned.keys() & idents(value):
                m.program.replaced.setdefault(ident, set()).update(idents(old))
        if atom.cls.what in ("estimator", "gpu-estimator"):
            estimators.set_attribute(m, frame, target, atom, target.attr, value)
        return None
    if isinstance(atom, Thing) and atom.kind == "namespace" and atom.ident:
        m.set_field(atom.ident, target.attr, value)
        return None
    if isinstance(atom, Thing) and atom.kind == "model" and target.attr == "forward":
        frozen.parts_changed(m, atom.ident)
    if isinstance(atom, Thing) and atom.kind in KERAS_KINDS and target.attr == "trainable":
        tensorflow_calls.frozen_by(m, atom, value)
    if isinstance(atom, Thing) and atom.kind == "estimator":
        estimators.set_attribute(m, frame, target, atom, target.attr, value)
    if isinstance(atom, Thing) and atom.kind == "optimizer" and target.attr == "param_groups":
        m.effect(frame, target, "`.param_groups`", OptimizerChange(of(atom)))
    if isinstance(atom, (Tensor, Unknown)) and target.attr in ("grad", "_grad"):
        if value.is_none:
            own_gradients.cleared(m, frame, target, "`.grad = None`", of(atom))
        else:
            m.effect(frame, target, "`.grad = ...`", GradWrite(of(atom)))
    if isinstance(atom, Unknown):
        unknown_calls.record_escapes(m, frame, target, Args([value]))
        tensorflow_calls.session_option(m, frame, target, value)
        if target.attr == "requires_grad":
            part_calls.frozen_behind(m, atom)
        if target.attr == "requires_grad" and True in value.constants():
            return of(Tensor("torch", "leaf", False, m.worker_ident, m.ident_at(target)))
        return None
    if isinstance(atom, Method) and target.attr == "requires_grad":
        part_calls.frozen_behind(m, atom)
    if isinstance(atom, Tensor) and target.attr == "requires_grad":
        return torch_tensors.set_requires_grad(m, atom, value)
    if isinstance(atom, Tensor) and target.attr == "data":
        whole = _is_given_another(target, m.place.statement)
        m.effect(frame, target, "`.data = ...`", Write(of(atom), value, whole))
    return None


def _is_given_another(target: ast.Attribute, statement: ast.AST | None) -> bool:
    """Whether the value that `statement` assigns to `target` isn't computed from its owner."""
    if not isinstance(statement, ast.Assign) or not isinstance(target.value, ast.Name):
        return False
    return all(
        not isinstance(part, ast.Name) or part.id != target.value.id
        for part in descend(statement.value)
    )


def delete_item(
    m: Machine, frame: Frame, target: ast.Subscript, holder: Value, index: Value
) -> None:
    """``del holder[index]``."""
    if any(isinstance(atom, External) and atom.name == "os.environ" for atom in holder.atoms):
        environment.environ_unset(m, frame, target, index)


def set_item(
    m: Machine, frame: Frame, target: ast.Subscript, holder: Value, index: Value, value: Value
) -> Value | None:
    """``holder[index] = value``; a tensor that gets a history is returned as it is then."""
    collectives.put_back(m, holder, value)
    for atom in holder.atoms:
        if isinstance(atom, External) and atom.name == "os.environ":
            environment.environ_set(m, frame, target, index, value)
        if isinstance(atom, Thing) and atom.kind == attribute_tables.KIND:
            attribute_tables.set_item(m, frame, target, atom, index, value)
        if isinstance(atom, Thing) and atom.kind == "model":
            frozen.parts_changed(m, atom.ident)
        if isinstance(atom, Unknown):
            unknown_calls.record_escapes(m, frame, target, Args([value]))
    if any(holder.tensors()):
        what = f"`{ast.unparse(target)} = ...`"
        written(m, frame, target, what, holder)
        if takes_all(target.slice) and any(it.framework == "torch" for it in holder.tensors()):
            m.effect(frame, target, what, Write(holder))
    only = holder.only
    return torch_tensors.with_history_of(m, only, [value]) if isinstance(only, Tensor) else None


def in_place(m: Machine, frame: Frame, node: ast.AugAssign, old: Value) -> Value | None:
    """``x += ...``: an in-place write to a tensor `x`, which without gradients remains itself."""
    if old.only == External("os.environ"):
        environment.environ_from(m, frame, node, m.eval(frame, node.value))
    item = node.target if isinstance(node.target, ast.Subscript) else None
    changed = old if item is None else m.eval(frame, item.value)
    if any(changed.tensors()):
        what = f"`{ast.unparse(ast.AugAssign(node.target, node.op, ast.Constant(...)))}`"
        written(m, frame, node, what, changed)
        own = item is not None and _own_slot(frame, item.slice)
        if not own and any(tensor.framework == "torch" for tensor in changed.tensors()):
            m.effect(frame, node, what, Write(changed))
    if item is not None:
        return None
    only = old.only
    kept = isinstance(only, Tensor) and only.framework == "torch" and not m.modes.grad
    return old if kept else None


def _own_slot(frame: Frame, index: ast.expr) -> bool:
    """Whether `index` is an argument of the task: each task then writes to its own slot."""
    if isinstance(index, ast.Constant):
        return False
    if frame.function is None:
        return True
    spec = frame.function.node.args
    own = {item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    return any(isinstance(part, ast.Name) and part.id in own for part in descend(index))
