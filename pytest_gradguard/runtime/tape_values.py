"""What a tape could take a gradient of, among the objects that tasks receive or return.

Tensors and variables of a differentiable type, and Keras models and layers that have weights; not
what merely holds numbers of TensorFlow's own: datasets, tables, generators, metrics, optimizers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from pytest_gradguard.runtime import callsite, locate
from pytest_gradguard.runtime.frameworks import tensorflow as tensors

_LIMIT = 5_000


class Value(NamedTuple):
    """One such object, and the path to it."""

    path: str
    item: Any

    @property
    def tensor(self) -> bool:
        """Whether it is a tensor; else something that has variables."""
        return tensors.is_tensor(self.item)


def values_in(roots: Iterable[tuple[str, Any]], limit: int = _LIMIT) -> list[Value]:
    """The values under `roots`, at any depth."""
    found: list[Any] = []
    functions: list[Any] = []
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
            if _is_layer(item) and item.variables:
                found.append(item)
            return True
        if issubclass(kind, polymorphic_function.Function):
            functions.append(item)
            return True
        foreign = kind.__module__.startswith("tensorflow.")
        return foreign and not isinstance(item, (tf.Module, tf.RaggedTensor, tf.SparseTensor))

    paths = locate.find(roots, look, limit=limit)
    values = [Value(paths[id(item)], item) for item in found]
    if functions:
        inside = [(paths[id(one)], one.python_function) for one in functions]
        values += values_in(inside, limit)
    return values


def _is_layer(item: Any) -> bool:
    return bool(_keras().is_layer(item))


def trainables_of(value: Value) -> Iterator[tuple[str, Any]]:
    """The variables of a value that tapes watch by themselves, with their paths."""
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


def _has_keras() -> bool:
    return "keras.src.saving.keras_saveable" in sys.modules


def _keras() -> Any:
    from pytest_gradguard.runtime.frameworks import keras

    return keras


def describe(item: Any) -> dict[str, Any]:
    """Framework, type, shape, dtype and device of a value, as plain values."""
    if _has_keras() and _is_layer(item):
        about = {"framework": "keras", "type": type(item).__name__, "shape": []}
        return {**about, "dtype": str(item.variable_dtype), "device": ""}
    return tensors.describe(tensors.variable_of(item))


def label_of(about: dict[str, Any]) -> str:
    """A description, as messages show it."""
    if about["framework"] == "keras":
        return str(about["type"])
    return f"{about['type']} of shape {about['shape']}, {about['dtype']}"


def names_in(frame: Any, wanted: set[int]) -> dict[int, str]:
    """What the user calls those tensors and variables, of which the ids are wanted, in `frame`."""
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
