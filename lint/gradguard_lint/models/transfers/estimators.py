"""Estimators, as far as they use a GPU or several jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product

from gradguard_lint.domain.conditions import NONE, Conditions, any_of, consistent
from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    UNKNOWN,
    Choice,
    Const,
    Frame,
    Instance,
    Site,
    Thing,
    Value,
    constant,
    guarded,
    of,
)
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import gpu_when


def estimator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An estimator that may train on a GPU."""
    return _estimator(name, [NONE] if row.gpu else list(_told(args)), m.site(frame, node))


def _estimator(name: str, on_gpu: list[Conditions], site: Site) -> Value:
    """An estimator, made at `site`, that trains on a GPU under one of these conditions."""
    if not on_gpu:
        return of(Thing("estimator", name))
    when = any_of(on_gpu)
    made = Choice(Thing("estimator", name, gpu=True, site=site), when)
    return Value((made, Choice(Thing("estimator", name))) if when else (made,))


def pipeline(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A pipeline of estimators."""
    on_gpu = [when for value in args.values() for when in _on_gpu(m, value)]
    return _estimator(name, on_gpu, m.site(frame, node))


def keep_device(m: Machine, instance: Instance, args: Args, *, gpu: bool) -> None:
    """An object of a subclass of an estimator is made: whether it trains on a GPU."""
    whens = [NONE] if gpu else list(_told(args))
    told = guarded(constant(True), any_of(whens)) if whens else constant(False)
    m.store[instance.ident, "<estimator on gpu>"] = told


def _on_gpu(m: Machine, value: Value) -> Iterator[Conditions]:
    """Under which conditions an estimator in `value` is one that trains on a GPU."""
    for choice in value.choices:
        for atom in inner(of(choice.atom)):
            if isinstance(atom, Instance):
                known = m.read(atom.ident, "<estimator on gpu>")
                for told in known.choices if known is not None else ():
                    if told.atom == Const(True, "bool"):
                        yield choice.when | told.when
            elif isinstance(atom, Thing) and atom.kind == "estimator" and atom.gpu:
                yield choice.when


def _fits_on_gpu(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance
) -> Iterator[Conditions]:
    """When the `fit` of a project's own estimator uses a GPU; what else it does is not seen."""
    fit = m.find_in_class(instance.cls, "fit")
    if fit is None or m.worker is not None:
        return
    program, state = m.program, m.state
    recorded, reached = dict(m.recorded), set(m.reached)
    m.program, m.state = Program(program.entry), state.copy()
    try:
        m.call(frame, node, m.bind(frame, node, fit, instance), Args([UNKNOWN, UNKNOWN]))
        for effect in m.program.effects:
            if effect.kind == "gpu-init":
                yield effect.when
    finally:
        m.program, m.state, m.recorded, m.reached = program, state, recorded, reached


def _told(args: Args) -> Iterator[Conditions]:
    """Under which conditions the arguments of an estimator ask for a GPU."""
    for key in ("device", "task_type", "tree_method", "device_type", "predictor"):
        value = args.keywords.get(key)
        when = gpu_when(value)
        if when is not None:
            yield when
        for choice in value.choices if value is not None else ():
            text = choice.atom.value if isinstance(choice.atom, Const) else None
            if isinstance(text, str) and "gpu" in text.lower():
                yield choice.when


def search(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """What runs estimators in several jobs."""
    short = name.rpartition(".")[2]
    n_jobs = args.get(None, "n_jobs")
    parallel = [
        choice.when
        for choice in (n_jobs.choices if n_jobs is not None else ())
        if not (isinstance(choice.atom, Const) and choice.atom.value in (1, None))
    ]
    estimator = args.get(0, "estimator") or args.get(None, "base_estimator") or UNKNOWN
    on_gpu = list(_on_gpu(m, estimator))
    for atom in inner(estimator) if parallel else ():
        if isinstance(atom, Instance):
            on_gpu += list(_fits_on_gpu(m, frame, node, atom))
    made = [it.site for it in inner(estimator) if isinstance(it, Thing) and it.gpu and it.site]
    for jobs, gpu in product(parallel, on_gpu):
        if consistent(jobs, gpu) and not m.conflicts(jobs | gpu):
            place = made[0] if made else None
            m.effect(frame, "gpu-search", node, short, under=jobs | gpu, place=place)
            break
    return _estimator(name, on_gpu, m.site(frame, node))
