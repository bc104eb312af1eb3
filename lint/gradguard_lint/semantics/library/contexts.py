"""``with`` blocks and decorators: the modes that they put in force."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradguard_lint.semantics.core import Args
from gradguard_lint.semantics.library.names import canonical
from gradguard_lint.semantics.values import (
    Atom,
    External,
    Function,
    Thing,
    Unknown,
    Value,
    of,
)

if TYPE_CHECKING:
    from gradguard_lint.semantics.frames import Frame


def enter_context(core: Any, frame: Frame, node: ast.expr, value: Value) -> Value:
    """Enter a ``with`` item: change the modes; what ``as`` gives."""
    result = value
    for atom in value.atoms:
        if isinstance(atom, Thing):
            result = _enter(core, frame, node, atom) or result
        elif isinstance(atom, Unknown) and _looks_like_lock(node):
            core.modes = replace(core.modes, locked=True)
    return result


def _looks_like_lock(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "lock" in str(name).lower() or "mutex" in str(name).lower()


def _enter(core: Any, frame: Frame, node: ast.expr, atom: Thing) -> Value | None:
    kind = atom.kind
    modes = core.modes
    if kind == "grad-mode":
        off = atom.part("off")
        flag = off.constant if off is not None else None
        if flag is not None:
            site = core.site(frame, node) if flag else None
            core.modes = replace(modes, grad=not flag, grad_site=site)
    elif kind == "autocast":
        enabled = atom.part("enabled")
        if enabled is None or False not in enabled.constants():
            core.modes = replace(modes, autocast=core.site(frame, node))
    elif kind == "tape":
        core.modes = replace(modes, tape=core.site(frame, node))
    elif kind == "tf-device":
        core.modes = replace(modes, gpu=atom.gpu and not core.gpu_absent)
    elif kind == "lock":
        core.modes = replace(modes, locked=True)
    elif kind == "parallel-config":
        backend = atom.part("backend")
        n_jobs = atom.part("n_jobs")
        if n_jobs is None and backend is not None and atom.name.endswith("parallel_backend"):
            n_jobs = of(Unknown())
        core.modes = replace(
            modes,
            backend=backend if backend is not None else modes.backend,
            n_jobs=n_jobs if n_jobs is not None else modes.n_jobs,
        )
        if backend is None and atom.part("prefer") is not None:
            core.modes = replace(core.modes, backend=atom.part("prefer"))
    elif kind == "dask-config":
        scheduler = atom.part("scheduler")
        if scheduler is not None:
            core.store[(0, "dask scheduler")] = scheduler
    elif kind == "cupy-device":
        from gradguard_lint.semantics.library.tensors import gpu_touched

        gpu_touched(core, frame, node, "cupy.cuda.Device(...)", "cupy")
    return None


def exit_context(core: Any, frame: Frame, node: ast.AST, value: Value) -> None:
    """Leave a ``with`` block; the modes are put back by the caller."""
    for thing in value.things("dask-config"):
        core.store.pop((0, "dask scheduler"), None)
        del thing
    for thing in value.things("executor"):
        if thing.name == "dask.distributed.Client":
            core.store.pop((0, "dask client"), None)


def decorate(
    core: Any, frame: Frame, decorator: ast.expr, value: Value, function: Function
) -> Value:
    """The value of a function or method under `decorator`."""
    if isinstance(decorator, ast.Name) and decorator.id in (
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
    ):
        return _mark(
            value, {"staticmethod": "static", "classmethod": "class"}.get(decorator.id, "property")
        )
    if isinstance(decorator, ast.Attribute) and decorator.attr in (
        "setter",
        "deleter",
        "getter",
        "cached_property",
    ):
        return _mark(value, "property") if decorator.attr == "cached_property" else value
    wrapper = core.eval(frame, decorator)
    for atom in wrapper.atoms:
        if isinstance(atom, External):
            name = canonical(atom.name)
            special = _external(core, frame, decorator, name, value)
            if special is not None:
                return special
        elif isinstance(atom, Thing) and atom.kind == "grad-mode":
            from gradguard_lint.semantics.library import marked

            return marked(value, atom)
        elif isinstance(atom, Function):
            result: Value = core.call(frame, decorator, of(atom), Args([value]))
            if any(result.of(Function)):
                return result
            return value
        else:
            from gradguard_lint.semantics.values import Method, Partial

            if isinstance(atom, (Method, Partial)):
                result = core.call(frame, decorator, of(atom), Args([value]))
                if not result.is_unknown:
                    return result
    return value


def _external(core: Any, frame: Frame, node: ast.AST, name: str, value: Value) -> Value | None:
    short = name.rsplit(".", 1)[-1]
    if name in ("joblib.delayed", "dask.delayed") or name in core.options.delayed:
        from gradguard_lint.semantics.values import Delayed

        return of(Delayed(value, "dask" if name.startswith("dask") else "joblib"))
    if name == "gradguard.memory":
        from gradguard_lint.semantics.library import cached

        return cached(value)
    if name.startswith("torch.") and short in ("no_grad", "inference_mode", "enable_grad"):
        return _mark(value, "enable_grad" if short == "enable_grad" else "no_grad")
    if name == "tensorflow.function":
        return _mark(value, "compiled")
    return None


def _mark(value: Value, mark: str) -> Value:
    def change(atom: Atom) -> Value:
        if isinstance(atom, Function):
            return of(replace(atom, marks=atom.marks | {mark}))
        return of(atom)

    return value.map(change)
