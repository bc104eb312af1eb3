"""GG105: which inputs of a traced function a gradient of its outputs would reach."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from pytest_gradguard.runtime.frameworks.tensorflow import tensors

_needs: weakref.WeakKeyDictionary[Any, list[list[int]]] = weakref.WeakKeyDictionary()


def needed_by(function: Any) -> list[list[int]]:
    """The inputs of a traced function that a gradient would reach, for each output."""
    graph = function.graph
    known = _needs.get(graph)
    if known is None:
        places = {id(one): index for index, one in enumerate(graph.inputs)}
        outputs = tensors_in(graph.structured_outputs)
        known = _needs[graph] = [_reached_from(one, places) for one in outputs]
    return known


def tensors_in(outputs: Any) -> list[Any]:
    """The tensors among the outputs of a traced function."""
    flat = tf.nest.flatten(outputs, expand_composites=True)
    return [one for one in flat if tensors.is_tensor(one)]


def _reached_from(output: Any, places: dict[int, int]) -> list[int]:
    found: set[int] = set()
    seen: set[int] = set()
    stack = [output]
    while stack:
        tensor = stack.pop()
        if not tensors.is_tensor(tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if id(tensor) in places:
            found.add(places[id(tensor)])
        elif tensor.dtype == tf.resource or tensors.differentiable(tensor):
            if not _stops(tensor.op.type):
                stack.extend(tensor.op.inputs)
        elif tensor.dtype == tf.variant:
            stack.extend(tensor.op.inputs)
    return sorted(found)


def _stops(kind: str) -> bool:
    """Whether operations of this kind have no gradient."""
    if kind in ("StopGradient", "PreventGradient"):
        return True
    try:
        return ops._gradient_registry.lookup(kind) is None
    except LookupError:  # calls of functions, and what nobody has written a gradient for
        return False
