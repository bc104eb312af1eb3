"""``keras.wrappers.scikit_learn`` was removed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from gradguard_lint.domain.effects import Effect, Program
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Fix, Replace, ReplaceStatement
from gradguard_lint.fixes.searches import Naming, renamed_keywords, renamed_parameters
from gradguard_lint.fixes.written import importing, is_open, keyword
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Gone, Report, listed
from gradguard_lint.words import words

CODE = "GG401"


def check(program: Program) -> Iterator[Report]:
    removed: dict[tuple[str, int], list[Effect]] = {}
    for effect in program.library_uses("removed wrapper"):
        removed.setdefault((effect.site.path, effect.site.line), []).append(effect)
    for effects in removed.values():
        names = list(dict.fromkeys(f"`{effect.what}`" for effect in effects))
        are, it = ("is", "it") if len(names) == 1 else ("are", "them")
        gone = f"{listed(names)} {are} gone since Keras {_WITHOUT}"
        yield Report(
            effects[0].site,
            f"{gone}: importing or using {it} raises an error.",
            fix=_by_scikeras(effects[0].site),
            gone=Gone(_PACKAGES, _WITHOUT, gone),
        )


_WITHOUT = "2.13"
"""The first version without the wrappers, of TensorFlow and of Keras."""

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tensorflow-rocm",
)


_CLASSES = ("KerasClassifier", "KerasRegressor")
_OWN = words(
    "model build_fn warm_start random_state optimizer loss metrics batch_size "
    "validation_batch_size verbose callbacks validation_split shuffle run_eagerly epochs "
    "class_weight"
)
"""The arguments of SciKeras itself; those of the model have a prefix."""


def _by_scikeras(site: Site) -> Fix | None:
    """SciKeras's class of the same name, with its argument names."""
    module = site.module
    node = site.statement if isinstance(site.node, ast.alias) else site.node
    changes: list[Change] = []
    if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("scikit_learn"):
        if any(alias.name not in _CLASSES for alias in node.names):
            return None
        changes.append(
            ReplaceStatement(module, node, f"from scikeras.wrappers import {_names(node)}")
        )
        names = {alias.asname or alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and [a.name for a in node.names] == ["scikit_learn"]:
        name = node.names[0].asname or "scikit_learn"
        changes.append(ReplaceStatement(module, node, f"from scikeras import wrappers as {name}"))
        names = {f"{name}.{known}" for known in _CLASSES}
    elif isinstance(node, ast.Import) and len(node.names) == 1 and node.names[0].asname:
        name = node.names[0].asname
        changes.append(ReplaceStatement(module, node, f"import scikeras.wrappers as {name}"))
        names = {f"{name}.{known}" for known in _CLASSES}
    elif isinstance(node, ast.Attribute):
        imported = importing(module, "scikeras.wrappers")
        if imported is None:
            return None
        changes += (Replace(module, node, "scikeras.wrappers"), *imported)
        names = {f"{ast.unparse(node)}.{known}" for known in _CLASSES}
    else:
        return None
    estimators: dict[ast.Call, Naming] = {}
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in names:
            if isinstance(node, ast.Attribute) and getattr(call.func, "value", None) is not node:
                continue
            naming = _naming(module, call)
            if naming is None:
                return None
            changes.append(renamed_keywords(module, call, naming))
            estimators[call] = naming
    searched = renamed_parameters(module, estimators)
    if searched is None:
        return None
    changes += searched
    return Fix("unsafe", "use SciKeras", tuple(changes))


def _names(node: ast.ImportFrom) -> str:
    return ", ".join(
        f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names
    )


def _naming(module: Module, call: ast.Call) -> Naming | None:
    """The new argument names of `call`; None if they are unknown."""
    builder = call.args[0] if call.args else None
    given = keyword(call, "build_fn")
    if given is not None:
        builder = given.value
    if is_open(call):
        return None
    parameters = _parameters(module, builder)
    if parameters is None:
        return None
    return partial(_new_name, parameters)


def _new_name(parameters: frozenset[str], name: str) -> str:
    """SciKeras's name of the argument `name`, for a builder with these `parameters`."""
    if name in _RENAMED:
        return _RENAMED[name]
    return f"model__{name}" if name in parameters or name not in _OWN else name


_RENAMED = {"build_fn": "model", "nb_epoch": "epochs"}


def _parameters(module: Module, builder: ast.expr | None) -> frozenset[str] | None:
    """The parameters of the function that builds the model; None if it is not found."""
    if builder is None or isinstance(builder, ast.Constant):
        return frozenset()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.FunctionDef)
            and isinstance(builder, ast.Name)
            and node.name == builder.id
        ):
            spec = node.args
            return frozenset(item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
    return None
