"""Penalties on parameters: losses that do not depend on data."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors

_LIMIT = 5_000
"""How many nodes of a graph are inspected."""
_ARITHMETIC = frozenset({"AddBackward0", "DivBackward0", "MulBackward0", "SubBackward0"})


def is_penalty(outputs: Any) -> bool:
    """Whether a backward pass begins at a penalty on parameters that certainly depends on no data.

    All computed tensors then have the size of a parameter, of all of them, or one number, and
    inputs outside of the graph are only factors and terms of the whole.
    """
    sizes: set[int] = set()
    leaves: list[int] = []
    seen: set[Any] = set()
    queue = [(tensors.grad_fn(output), True) for output in outputs]
    while queue and len(seen) < _LIMIT:
        node, whole = queue.pop()
        metadata = getattr(node, "_input_metadata", None)
        if metadata is None:
            return False
        if node in seen:
            continue
        seen.add(node)
        size = sum(torch.Size(shown.shape).numel() for shown in metadata)
        if hasattr(node, "variable"):
            leaves.append(size)
            continue
        sizes.add(size)
        whole = whole and size == 1 and type(node).__name__ in _ARITHMETIC
        following = [one for one, _ in node.next_functions]
        number = any(one is None for one in following)
        if number and (not whole or any(hasattr(one, "variable") for one in following)):
            return False
        queue += [(one, whole) for one in following if one is not None]
    return not queue and sizes <= {1, sum(leaves), *leaves}
