"""The objects that tasks receive or return and that a tape could differentiate by.

Tensors and variables of a differentiable type, and Keras models and layers that have weights. Not
datasets, tables, generators, metrics and optimizers, which only hold numbers of TensorFlow's own.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.frameworks.tensorflow import tensors
from pytest_gradguard.runtime.kernel import callsite, locate, used_globals

_LIMIT = 5_000
_COMPOSITES = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)
_LOOKED_INTO = (tf.Module, *locate.WRAPPERS)


class Value(NamedTuple):
    """One such object, and the path to it."""

    path: str
    item: Any

    @property
    def tensor(self) -> bool:
        """Whether it is a tensor; otherwise it has variables."""
        return tensors.is_tensor(self.item)


def values_in(
    roots: Iterable[tuple[str, Any]], *, deep: bool = True, limit: int = _LIMIT
) -> list[Value]:
    """The values under `roots`: at any depth, or (not `deep`) directly and in plain containers."""
    found: list[Any] = []
    functions: list[Any] = []
    composites: list[Any] = []
    keras: Any = sys.modules.get("keras.src.saving.keras_saveable")
    saveable = () if keras is None else keras.KerasSaveable

    def look(item: Any) -> bool:
        kind = type(item)
        variable = tensors.variable_of(item)
        if tensors.is_tensor(variable) or tensors.is_variable(variable):
            if tensors.differentiable(variable):
                found.append(item)
            return True
        if issubclass(kind, saveable):
            if _is_layer(item) and _has_variables(item):
                found.append(item)
            return True
        if issubclass(kind, polymorphic_function.Function):
            functions.append(item)
            return True
        if issubclass(kind, _COMPOSITES):
            composites.append(item)
            return True
        return kind.__module__.startswith("tensorflow.") and not issubclass(kind, _LOOKED_INTO)

    paths = locate.find(roots, look, deep=deep, limit=limit)
    values = [Value(paths[id(item)], item) for item in found]
    for composite in composites:
        parts = tf.nest.flatten(composite, expand_composites=True)
        known = {id(part) for part in found}
        values += [
            Value(paths[id(composite)], part)
            for part in parts
            if tensors.is_tensor(part) and tensors.differentiable(part) and id(part) not in known
        ]
    for function in functions:
        inside = captures_of(function.python_function, paths[id(function)])
        values += values_in(inside, deep=deep, limit=limit)
    return values


def captures_of(function: Any, path: str = "", depth: int = 5) -> Iterator[tuple[str, Any]]:
    """The parts of a task's function, with paths as `locate` gives them.

    The object that a method is bound to, the arguments of a partial, closures and defaults: all
    that the function uses directly, but nothing reached through an object's attributes.
    """
    if isinstance(function, functools.partial):
        yield from captures_of(function.func, path, depth)
        yield f"{path}.partial.args", function.args
        yield f"{path}.partial.keywords", function.keywords
    elif isinstance(function, types.MethodType):
        yield f"{path}.self", function.__self__
        yield from captures_of(function.__func__, path, depth)
    elif isinstance(function, types.FunctionType):
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                captured = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            if depth:
                yield from captures_of(captured, f"{path}.closure[{name!r}]", depth - 1)
        yield f"{path}.defaults", function.__defaults__
        yield f"{path}.defaults", function.__kwdefaults__
    else:
        yield path, function


def globals_of(function: Any, *, written: bool = False) -> Iterator[tuple[str, Any]]:
    """The globals that a task's function and its callees read, with their paths.

    Args:
        function: the task's function.
        written: include the globals that it assigns.
    """
    uses = used_globals.uses_of(function, classes=True)
    for read in uses.reads:
        if not issubclass(type(read.value), (type, types.FunctionType, types.ModuleType)):
            yield _global(read.names), read.value
    for module, names in uses.writes if written else ():
        holder = sys.modules.get(str(module))
        if holder is not None:
            yield _global(names), used_globals.value_at(holder, names)


def _global(names: Sequence[str]) -> str:
    return ".".join([f"globals[{names[0]!r}]", *names[1:]])


def _has_variables(layer: Any) -> bool:
    try:
        return bool(layer.variables)
    except Exception:  # the program's own property may raise anything
        return False


def _is_layer(item: Any) -> bool:
    return bool(_keras().is_layer(item))


def trainables_of(value: Value) -> Iterator[tuple[str, Any]]:
    """The variables of a value that tapes watch automatically, with their paths."""
    if value.tensor:
        return
    if _has_keras() and _is_layer(value.item):
        for variable in value.item.trainable_variables:
            inner = tensors.variable_of(variable)
            if tensors.is_variable(inner):
                yield f"{value.path}.{_keras().path_in(value.item, variable)}", inner
        return
    inner = tensors.variable_of(value.item)
    if inner.trainable:
        yield value.path, inner


def frozen_in(value: Value) -> Iterator[Any]:
    """The variables that a model or layer does not train, whatever TensorFlow reports."""
    if not value.tensor and _has_keras() and _is_layer(value.item):
        trained = {id(variable) for variable in value.item.trainable_variables}
        for variable in value.item.variables:
            if id(variable) not in trained:
                yield tensors.variable_of(variable)


def _has_keras() -> bool:
    return "keras.src.saving.keras_saveable" in sys.modules


def _keras() -> Any:
    from pytest_gradguard.runtime.frameworks.keras import objects as keras

    return keras


def describe(item: Any) -> Details:
    """Framework, type, shape, dtype and device of a value, as plain values."""
    if _has_keras() and _is_layer(item):
        return {
            "framework": "keras",
            "type": type(item).__name__,
            "shape": [],
            "dtype": str(item.variable_dtype),
            "device": "",
        }
    return tensors.describe(tensors.variable_of(item))


def label_of(about: Details) -> str:
    """A description, as messages show it."""
    if about["framework"] == "keras":
        return str(about["type"])
    return f"{about['type']} of shape {about['shape']}, {about['dtype']}"


def names_in(frame: Any, wanted: set[int]) -> dict[int, str]:
    """The names in `frame` of tensors and variables with the wanted ids."""
    names: dict[int, str] = {}
    for value in values_in(callsite.local_names(frame)):
        inner = tensors.variable_of(value.item)
        if id(inner) in wanted:
            names.setdefault(id(inner), value.path)
        else:
            for path, variable in trainables_of(value):
                if id(variable) in wanted:
                    names.setdefault(id(variable), path)
    return names
