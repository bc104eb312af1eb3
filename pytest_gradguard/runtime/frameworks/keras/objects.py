"""Keras 3, with any backend: models, layers and optimizers report their own pickling.

They pickle themselves as one file in Keras's own format, so their contents are not pickled alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable

from pytest_gradguard import keras_variables
from pytest_gradguard.details import Details
from pytest_gradguard.runtime.frameworks.keras import FRAMEWORK
from pytest_gradguard.runtime.kernel import locate, transfer
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.patching import Patch, Patches


def _watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    active = transfer.active

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        current = active.transfer
        # Anything saved in between belongs to this object, and is not transferred on its own.
        active.transfer = None
        try:
            reduction = original(self)
        finally:
            active.transfer = current
        if current is not None:
            try:
                return _report(current, self, reduction)
            except Exception as error:
                fault(error)
        return reduction

    return __reduce__


reductions = Patches([Patch(KerasSaveable, "__reduce__", _watched)])


def _report(current: transfer.Transfer, item: Any, reduction: Any) -> Any:
    if isinstance(item, keras.optimizers.Optimizer):
        return current.optimizer(item, reduction, FRAMEWORK) if loses_state(item) else reduction
    if isinstance(item, keras.Layer):
        variables = item.trainable_variables
        for variable in variables:
            current.parameter(_Weight(item, variable), FRAMEWORK)
        if keras.backend.backend() == "torch":
            _remember(getattr(current, "call", None), item, variables)
        if variables and _on_gpu(variables[0]):
            return current.on_gpu(_Weight(item, variables[0]), reduction, FRAMEWORK)
    return reduction


def _remember(call: Any, layer: Any, variables: Iterable[Any]) -> None:
    """Remember the torch parameters that go to a worker of `call`: no backward pass from its
    results reaches them."""
    for variable in variables:
        if call is not None and getattr(variable.value, "requires_grad", False):
            call.remember_shipped(variable.value, path_in(layer, variable))
            call.ships_gradients = True


def _on_gpu(variable: Any) -> bool:
    """Whether a variable is on a GPU, by the name of its device in its backend."""
    value = getattr(variable, "_value", None)
    device = str(getattr(value, "device", ""))
    tensorflow: Any = sys.modules.get("pytest_gradguard.runtime.frameworks.tensorflow.tensors")
    if tensorflow is not None and tensorflow.is_variable(value):
        return bool(tensorflow.on_gpu(value))
    return device.startswith("cuda")


class _Weight:
    """A variable of a model or layer, which is pickled as a whole."""

    def __init__(self, owner: Any, variable: Any) -> None:
        self.owner = owner
        self.variable = variable


def loses_state(optimizer: Any) -> bool:
    """Whether a copy of `optimizer` arrives without its state so far.

    A copy is unbuilt, and Keras loads nothing into one that has fewer variables than were saved:
    that is every optimizer with moments, averages or accumulated gradients. The step count and a
    learning rate exist from the start.
    """
    inner = keras_variables.innermost(optimizer)
    if not inner.built or keras_variables.steps_of(optimizer) <= 0:
        return False
    from_the_start = 1 + keras_variables.is_variable(inner._learning_rate)
    return len(inner.variables) > from_the_start


def is_layer(item: Any) -> bool:
    """Whether `item` is a model or a layer; its `__class__` is not asked."""
    return issubclass(type(item), keras.Layer)


def find(roots: Iterable[tuple[str, Any]], *, deep: bool = True) -> dict[int, str]:
    """The paths of the models, layers and optimizers under `roots`."""

    def look(item: Any) -> bool:
        return is_layer(item) or issubclass(type(item), keras.optimizers.Optimizer)

    return locate.find(roots, look, deep=deep)


def met(item: Any) -> tuple[Any, str]:
    """A weight is revealed by the pickling of its model or layer; other items by their own."""
    if isinstance(item, _Weight):
        return item.owner, "." + path_in(item.owner, item.variable)
    return item, ""


def path_in(layer: Any, variable: Any) -> str:
    """The path of `variable` in a model or layer, by Keras's names, such as ``dense.kernel``."""
    parts = str(variable.path).split("/")
    if layer.name in parts:
        parts = parts[parts.index(layer.name) + 1 :]
    return ".".join(parts)


def describe(item: Any) -> Details:
    """Type, shape, dtype and device; an optimizer has only its type."""
    if isinstance(item, _Weight):
        variable = item.variable
        return {
            "framework": "keras",
            "type": "Variable",
            "shape": [None if size is None else int(size) for size in variable.shape],
            "dtype": str(variable.dtype),
            "device": _device_of(variable),
        }
    return {
        "framework": "keras",
        "type": type(item).__name__,
        "shape": [],
        "dtype": "",
        "device": "",
        "iterations": keras_variables.steps_of(item),
    }


def _device_of(variable: Any) -> str:
    return str(getattr(variable.value, "device", "") or "")
