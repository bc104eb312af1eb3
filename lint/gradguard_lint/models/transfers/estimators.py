"""Estimators, as far as they use a GPU or several jobs."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Instance,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import placed


def estimator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An estimator that may train on a GPU."""
    return of(Thing("estimator", name, gpu=row.gpu or _on_gpu(args)))


def pipeline(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A pipeline of estimators."""
    gpu = any(_uses_gpu(m, atom) for value in args.values() for atom in inner(value))
    return of(Thing("estimator", name, gpu=gpu))


def keep_device(m: Machine, instance: Instance, args: Args, *, gpu: bool) -> None:
    """An object of a subclass of an estimator is made: whether it trains on a GPU."""
    m.store[instance.ident, "<estimator on gpu>"] = constant(gpu or _on_gpu(args))


def _uses_gpu(m: Machine, atom: Atom) -> bool:
    if isinstance(atom, Instance):
        known = m.read(atom.ident, "<estimator on gpu>")
        return known is not None and known.constant is True
    return isinstance(atom, Thing) and atom.kind == "estimator" and atom.gpu


def _fits_on_gpu(m: Machine, frame: Frame, node: ast.AST, instance: Instance) -> bool:
    """Whether the `fit` of a project's own estimator uses a GPU; what else it does is not seen."""
    fit = m.find_in_class(instance.cls, "fit")
    if fit is None or m.worker is not None:
        return False
    program, state = m.program, m.state
    recorded, reached = dict(m.recorded), set(m.reached)
    m.program, m.state = Program(program.entry), state.copy()
    try:
        m.call(frame, node, m.bind(frame, node, fit, instance), Args([UNKNOWN, UNKNOWN]))
        return any(effect.kind == "gpu-init" for effect in m.program.effects)
    finally:
        m.program, m.state, m.recorded, m.reached = program, state, recorded, reached


def _on_gpu(args: Args) -> bool:
    for key in ("device", "task_type", "tree_method", "device_type", "predictor"):
        value = args.keywords.get(key)
        if value is None:
            continue
        if placed(value)[0] or any(
            isinstance(item, str) and "gpu" in item.lower() for item in value.constants()
        ):
            return True
    return False


def search(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """What runs estimators in several jobs."""
    short = name.rpartition(".")[2]
    n_jobs = args.get(None, "n_jobs")
    parallel = n_jobs is not None and any(
        not (isinstance(atom, Const) and atom.value in (1, None)) for atom in n_jobs.atoms
    )
    estimator = args.get(0, "estimator") or args.get(None, "base_estimator") or UNKNOWN
    atoms = list(inner(estimator))
    gpu = any(_uses_gpu(m, atom) for atom in atoms)
    own = (atom for atom in atoms if isinstance(atom, Instance) and parallel)
    if parallel and (gpu or any(_fits_on_gpu(m, frame, node, instance) for instance in own)):
        m.effect(frame, "gpu-search", node, short)
    return of(Thing("estimator", name, gpu=gpu))
