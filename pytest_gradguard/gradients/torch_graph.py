"""Walks autograd graphs to find the leaves behind a tensor; keeps nothing of a graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch.tensors import grad_fn
from pytest_gradguard.runtime.kernel.references import Reference, refer

_LIMIT = 10_000
"""Nodes that one search visits. torch frees nodes that Python has seen by recursion: a chain of
some 50 000 overflows a stack of 8 MB and ends the process."""


class Leaves(NamedTuple):
    """The leaves behind some tensors.

    Attributes:
        leaves: weak references to the leaves that require grad, by id.
        walked: number of nodes visited.
        complete: whether the whole graph was walked.
        users: by the id of a requested leaf, the names of the operations that use it.
        passed: ids of the requested non-leaf tensors whose node is in the graph.
    """

    leaves: dict[int, Reference]
    walked: int
    complete: bool
    users: dict[int, tuple[str, ...]]
    passed: frozenset[int]


def node_of(output: Any) -> Any:
    """The autograd node behind a tensor or a `GradientEdge`; None for a leaf."""
    if isinstance(output, torch.Tensor):
        return grad_fn(output)
    return getattr(output, "node", None)


def behind(outputs: Any, asked: frozenset[int] = frozenset(), nonleaves: Any = ()) -> Leaves:
    """The leaves behind `outputs` (tensors or graph edges).

    Args:
        outputs: where to start.
        asked: ids of leaves whose users are requested.
        nonleaves: non-leaf tensors to look for.
    """
    wanted = {}
    for tensor in nonleaves:
        node = grad_fn(tensor)
        if node is not None:
            wanted[node] = id(tensor)
    passed = set()
    leaves: dict[int, Reference] = {}
    users: dict[int, dict[str, None]] = {}
    stack = []
    for output in outputs:
        if isinstance(output, torch.Tensor) and output._is_view() and grad_fn(output) is None:
            output = output._base  # a view created with gradients disabled
        node = node_of(output)
        if node is not None:
            stack.append(node)
        elif isinstance(output, torch.Tensor):
            leaves[id(output)] = refer(output)
    seen = set(stack)
    while stack and len(seen) < _LIMIT:
        current = stack.pop()
        if current in wanted:
            passed.add(wanted[current])
        for following, _ in current.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None:
                identity = id(variable)
                leaves[identity] = refer(variable)
                if identity in asked:
                    users.setdefault(identity, {})[_name(current)] = None
            elif following not in seen:
                seen.add(following)
                stack.append(following)
    return Leaves(
        leaves,
        len(seen) + 1,
        not stack,
        {identity: tuple(names) for identity, names in users.items()},
        frozenset(passed),
    )


def _name(node: Any) -> str:
    return str(node.name()) if hasattr(node, "name") else type(node).__name__
