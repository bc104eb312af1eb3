"""joblib, and scikit-learn's copies of its names: `Parallel`, `delayed`, contexts, `Memory`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradguard_lint.semantics.core import Args
from gradguard_lint.semantics.library.workers import call_with, start_of, tasks_in
from gradguard_lint.semantics.values import (
    UNKNOWN,
    Bound,
    Delayed,
    Function,
    Items,
    TaskCall,
    Tensor,
    Thing,
    Value,
    inner,
    of,
    sequence,
)

if TYPE_CHECKING:
    from gradguard_lint.semantics.frames import Frame
    from gradguard_lint.semantics.interpreter import Interpreter

PARAMETERS = ("n_jobs", "backend", "return_as", "verbose")


def parallel_parts(args: Args) -> tuple[tuple[str, Value], ...]:
    """The arguments of ``Parallel(...)`` that decide where its tasks run."""
    parts = {}
    for position, name in ((0, "n_jobs"), (1, "backend")):
        value = args.get(position, name)
        if value is None and args.open:
            value = UNKNOWN if name == "n_jobs" else None
        if value is not None:
            parts[name] = value
    for name in ("prefer", "require", "return_as"):
        if name in args.keywords:
            parts[name] = args.keywords[name]
    return tuple(parts.items())


def call(core: Interpreter, frame: Frame, node: ast.AST, name: str, args: Args) -> Value | None:
    """``joblib.something(...)``."""
    if name == "joblib.Parallel":
        parts = parallel_parts(args)
        thing = Thing(
            "parallel",
            name,
            core.ident_at(node),
            core.worker_ident,
            parts=parts,
            site=core.site(frame, node),
        )
        backend = thing.part("backend")
        if backend is not None and "dask" in backend.constants():
            core.effect(frame, "dask-backend", node, 'backend="dask"')
        return of(thing)
    if name in ("joblib.delayed", "sklearn.utils.parallel.delayed"):
        function = args.get(0, "function")
        return of(Delayed(function if function is not None else UNKNOWN))
    if name == "joblib.wrap_non_picklable_objects":
        return args.get(0) or UNKNOWN
    if name in ("joblib.parallel_config", "joblib.parallel_backend"):
        return of(Thing("parallel-config", name, parts=_config(args)))
    if name == "joblib.Memory":
        location = args.get(0, "location")
        if location is not None and core.is_none(location):
            return of(Thing("no-memory", name))
        return of(Thing("memory", name))
    if name == "joblib.cpu_count" or name == "joblib.effective_n_jobs":
        return UNKNOWN
    return None


def _config(args: Args) -> tuple[tuple[str, Value], ...]:
    parts = {}
    for position, name in ((0, "backend"), (1, "n_jobs")):
        value = args.get(position, name)
        if value is not None:
            parts[name] = value
    for name in ("prefer", "require"):
        if name in args.keywords:
            parts[name] = args.keywords[name]
    return tuple(parts.items())


def run(core: Interpreter, frame: Frame, node: ast.AST, parallel: Thing, args: Args) -> Value:
    """``Parallel(...)(tasks)``."""
    given = args.get(0, "iterable") or UNKNOWN
    tasks = tasks_in(given)
    start = start_of(core, parallel)
    for atom in given.atoms:
        if isinstance(atom, Items) and atom.kind == "generator" and start is not None:
            core.effect(frame, "lazy-tasks", node, "generator", start=start[0])
    if not tasks:
        return UNKNOWN
    if start is None:
        results = [
            core.call(
                frame, task.site.node, task.function, Args(list(task.args), dict(task.keywords))
            )
            for task in tasks[:8]
        ]
        from gradguard_lint.semantics.values import join

        return sequence(join(results))
    many = not (len(tasks) == 1 and _single(given))
    return sequence(
        call_with(core, frame, node, tasks, start[0], "joblib", many=many, when=start[1])
    )


def _single(given: Value) -> bool:
    only = given.only
    return isinstance(only, Items) and only.items is not None and len(only.items) == 1


def make_task(
    core: Interpreter, frame: Frame, node: ast.AST, delayed: Delayed, args: Args
) -> Value:
    """``delayed(f)(x)``."""
    private: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    if isinstance(node, ast.Call):
        private, names = core.private_parts(frame, node)
    positional = list(args.positional)
    if args.rest is not None:
        positional.extend([args.rest] * 3)
    task = TaskCall(
        delayed.function,
        tuple(positional),
        tuple(args.keywords.items()),
        core.site(frame, node),
        private,
        names,
        delayed.library,
        core.in_loop(frame),
    )
    return of(task)


def cached_call(core: Interpreter, frame: Frame, node: ast.AST, cached: Thing, args: Args) -> Value:
    """A call of a function that ``Memory.cache`` wraps."""
    function = cached.part("function") or UNKNOWN
    value = core.call(frame, node, function, args)
    carries = any(
        isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad == "history"
        for atom in inner(value)
    )
    if carries:
        wrapped = [*function.of(Function), *(bound.function for bound in function.of(Bound))]
        for atom in wrapped:
            from gradguard_lint.semantics.values import Site

            place = Site(atom.module, atom.node, atom.name, atom.node)
            core.order += 1
            core.effect(frame, "memory-graph", atom.node, atom.name, place=place)
    return value
