"""TensorFlow: variables and eager tensors report their own pickling; questions about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.trackable import data_structures

from pytest_gradguard import keras_variables
from pytest_gradguard.details import Details
from pytest_gradguard.runtime.frameworks.tensorflow import FRAMEWORK
from pytest_gradguard.runtime.kernel import locate, transfer
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches

locate.WRAPPERS.update(
    {
        data_structures.ListWrapper: lambda wrapper: wrapper._storage,
        data_structures._DictWrapper: lambda wrapper: wrapper.__wrapped__,
        data_structures._TupleWrapper: lambda wrapper: wrapper.__wrapped__,
    }
)


def _tensor(reduction: Any, tensor: Any) -> Any:
    current = transfer.active.transfer
    if current is None:
        return None
    reduction = current.tensor(tensor, reduction, FRAMEWORK)
    return current.on_gpu(tensor, reduction, FRAMEWORK) if on_gpu(tensor) else reduction


def _begins(variable: Any) -> transfer.Transfer | None:
    current = transfer.active.transfer
    if current is not None and variable.trainable and differentiable(variable):
        current.parameter(variable, FRAMEWORK)
    return current


def _variable(current: transfer.Transfer, reduction: Any, variable: Any) -> Any:
    return current.on_gpu(variable, reduction, FRAMEWORK) if on_gpu(variable) else None


_GPU = ":GPU:"


def on_gpu(item: Any) -> bool:
    """Whether a tensor or variable is on a GPU; its device is then ``/job:…/device:GPU:0``."""
    return _GPU in item.device


reductions = Patches(
    [
        observe(ops._EagerTensorBase, "__reduce__", result=_tensor),
        observe(
            resource_variable_ops.BaseResourceVariable,
            "__reduce__",
            before=_begins,
            result=_variable,
        ),
    ]
)


watching: list[Callable[[Any, Any], bool]] = []
"""Each tells whether a tape watches a tensor that a call ships."""


def wanted(call: Any, tensor: Any) -> bool:
    """Whether a tape that records around `call` watches `tensor`."""
    return any(watched(call, tensor) for watched in watching)


def recorded(tensor: Any) -> bool:
    """Whether a tape that records in this thread watches `tensor`, or its inputs."""
    known = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes
    return differentiable(tensor) and bool(known([tensor]))


def is_tensor(item: Any) -> bool:
    """Whether `item` is a tensor; its `__class__` is not asked."""
    return issubclass(type(item), tf.Tensor)


def is_variable(item: Any) -> bool:
    """Whether `item` is a variable of TensorFlow itself."""
    return issubclass(type(item), tf.Variable)


def differentiable(item: Any) -> bool:
    """Whether a tensor or variable has a dtype with gradients."""
    return bool(item.dtype.is_floating or item.dtype.is_complex)


def variable_of(item: Any) -> Any:
    """The TensorFlow variable inside a Keras variable (None: not built yet); otherwise `item`."""
    return getattr(item, "_value", None) if keras_variables.is_variable(item) else item


def find(roots: Iterable[tuple[str, Any]], *, deep: bool = True) -> dict[int, str]:
    """The paths of the tensors and variables under `roots`.

    A Keras variable and the TensorFlow variable inside it have the same path.
    """
    inner: dict[int, int] = {}

    def look(item: Any) -> bool:
        variable = variable_of(item)
        if variable is not item and variable is not None:
            inner[id(variable)] = id(item)
            return True
        return is_tensor(item) or is_variable(item)

    found = locate.find(roots, look, deep=deep)
    return {**found, **{one: found[outer] for one, outer in inner.items() if outer in found}}


def describe(item: Any) -> Details:
    """Type, shape (a list of sizes), dtype and device, as plain values."""
    kind = type(item)
    variable = is_variable(item)
    return {
        "framework": "tensorflow",
        "type": "Variable" if variable else kind.__name__,
        "shape": [None if size is None else int(size) for size in item.shape],
        "dtype": item.dtype.name,
        "device": str(item.device),
    }
