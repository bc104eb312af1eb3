"""Estimators, as far as they use a GPU or several jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import NONE, Conditions, any_of, consistent
from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Const,
    Frame,
    Instance,
    Site,
    Thing,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import gpu_when
from gradguard_lint.models.transfers.starting import where_not

ON_GPU = "<estimator on gpu>"
"""Store key of an estimator: whether it trains on a GPU."""

_HELD = "<held estimators>"
"""Store key of an estimator: the estimators that it fits."""

_SEARCHED = "<searched estimators>"
"""Store key of a search that hasn't begun: the estimators that it fits in jobs."""

_KEYS = ("device", "task_type", "tree_method", "device_type", "predictor")
"""The parameters that select a GPU."""


def estimator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An estimator that may train on a GPU."""
    return _estimator(m, frame, node, name, [NONE] if row.gpu else list(_gpu_conditions(args)))


def _estimator(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    name: str,
    on_gpu: list[Conditions],
    held: Value = NOTHING,
) -> Value:
    """An estimator created at `node` that trains on a GPU under one of these conditions, and fits
    the estimators `held`."""
    made = Thing("estimator", name, m.ident_at(node), m.worker_ident)
    _note(m, made, on_gpu, m.site(frame, node))
    m.store[made.ident, _HELD] = held
    return of(made)


def _note(m: Machine, estimator: Thing | Instance, on_gpu: list[Conditions], site: Site) -> None:
    """Record when `estimator` trains on a GPU, as set at `site`."""
    trains_on_gpu = constant(False)
    if on_gpu:
        when = any_of(on_gpu)
        trains_on_gpu = (
            join((guarded(constant(True), when), trains_on_gpu)) if when else constant(True)
        )
        m.moved(estimator.ident, site)
    m.store[estimator.ident, ON_GPU] = trains_on_gpu


def pipeline(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A pipeline, or another estimator that fits its arguments."""
    held = join(args.values())
    return _estimator(m, frame, node, name, list(_on_gpu(m, held)), held)


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """Record whether an object of an estimator's subclass trains on a GPU."""
    on_gpu = [NONE] if instance.cls.what == "gpu-estimator" else list(_gpu_conditions(args))
    _note(m, instance, on_gpu, m.site(frame, node))
    return NOTHING


def method(
    m: Machine, frame: Frame, node: ast.AST, estimator: Thing | Instance, name: str, args: Args
) -> Value | None:
    """A method of an estimator."""
    if name == "set_params":
        asked = {key.rpartition("__")[2]: value for key, value in args.keywords.items()}
        if any(key in asked for key in _KEYS):
            on_gpu = list(_gpu_conditions(Args(keywords=asked)))
            _note(m, estimator, on_gpu, m.site(frame, node))
            m.store[estimator.ident, _HELD] = NOTHING  # nested parameters are unknown
        if isinstance(estimator, Thing):
            _in_jobs(m, frame, node, estimator, args)
    elif name == "fit":
        m.store.drop((estimator.ident, _SEARCHED))  # later settings are too late
    return of(estimator) if name in ("fit", "set_params") else None


def set_attribute(
    m: Machine, frame: Frame, node: ast.AST, estimator: Thing | Instance, name: str, value: Value
) -> None:
    """``estimator.name = value``."""
    if name in _KEYS:
        _note(
            m, estimator, list(_gpu_conditions(Args(keywords={name: value}))), m.site(frame, node)
        )
    elif name == "n_jobs" and isinstance(estimator, Thing):
        _in_jobs(m, frame, node, estimator, Args(keywords={name: value}))


def _on_gpu(m: Machine, value: Value) -> Iterator[Conditions]:
    """The conditions under which an estimator in `value` trains on a GPU."""
    for choice in value.choices:
        for atom in inner(of(choice.atom)):
            if isinstance(atom, (Instance, Thing)):
                known = m.read(atom.ident, ON_GPU)
                for flag in known.choices if known is not None else ():
                    if flag.atom == Const(True, "bool"):
                        yield choice.when | flag.when


def _fitted(m: Machine, value: Value, depth: int = 3) -> Iterator[Instance | Thing]:
    """The estimators in `value`, including those that they fit."""
    for atom in inner(value):
        if isinstance(atom, (Instance, Thing)):
            yield atom
            held = m.read(atom.ident, _HELD) if depth else None
            if held is not None:
                yield from _fitted(m, held, depth - 1)


def _fits_on_gpu(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance
) -> Iterator[Conditions]:
    """The conditions under which the `fit` of a project's estimator uses a GPU; without other
    effects."""
    fit = m.find_in_class(instance.cls, "fit")
    if fit is None or m.place.worker is not None:
        return
    program, state = m.program, m.state
    recorded, reached = dict(m.facts.recorded), set(m.facts.executed)
    m.program, m.state = Program(program.entry), state.copy()
    try:
        m.call(frame, node, m.bind(frame, node, fit, instance), Args([UNKNOWN, UNKNOWN]))
        for effect in m.program.effects:
            if effect.gpu_use == "context":
                yield effect.when
    finally:
        m.program, m.state, m.facts.recorded, m.facts.executed = program, state, recorded, reached


def _gpu_conditions(args: Args) -> Iterator[Conditions]:
    """The conditions under which an estimator's arguments select a GPU."""
    for key in _KEYS:
        value = args.keywords.get(key)
        when = gpu_when(value)
        if when is not None:
            yield when
        for choice in value.choices if value is not None else ():
            text = choice.atom.value if isinstance(choice.atom, Const) else None
            if isinstance(text, str) and "gpu" in text.lower():
                yield choice.when


def search(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A search, which fits estimators in several jobs."""
    estimator = args.get(0, "estimator", "base_estimator") or UNKNOWN
    made = _estimator(m, frame, node, name, list(_on_gpu(m, estimator)), estimator)
    for it in made.things("estimator"):
        m.store[it.ident, _SEARCHED] = estimator
        _in_jobs(m, frame, node, it, args)
    return made


def _in_jobs(m: Machine, frame: Frame, node: ast.AST, search: Thing, args: Args) -> None:
    """Record the number of jobs in which the `search` fits its estimators."""
    n_jobs = args.keywords.get("n_jobs")  # an explicit argument means several jobs
    searched = m.read(search.ident, _SEARCHED)
    if n_jobs is None or searched is None:
        return
    jobs = where_not(n_jobs, (1, None))
    if jobs is None:
        m.effect(frame, node, "", LibraryUse("fit in one job", ident=search.ident))
        return
    on_gpu = list(_on_gpu(m, searched))
    made = [*dict.fromkeys(_fitted(m, searched))]
    for it in made:
        on_gpu += _fits_on_gpu(m, frame, node, it) if isinstance(it, Instance) else ()
    both = (jobs | gpu for gpu in on_gpu if consistent(jobs, gpu))
    under = next((when for when in both if not m.conflicts(when)), None)
    if under is not None:
        what = search.name.rpartition(".")[2]
        place = next(filter(None, (m.place_of(it.ident) for it in made)), None)
        m.effect(
            frame,
            node,
            what,
            LibraryUse("fit in several jobs", ident=search.ident, place=place),
            under=under,
        )
