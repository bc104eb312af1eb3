"""Leaves that the program pickles itself, for a running process or into a file.

No call ships them. When a process reports a computation with a copy, its digest finds the leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import sharing, tensors
from pytest_gradguard.runtime.frameworks.torch.copies import digest
from pytest_gradguard.runtime.kernel import frameworks
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end

_MOST = 1_024


class _State(GuardState):
    """What the program has pickled.

    Attributes:
        leaves: the leaves, by id.
        own: the digests of the last other tensors that require grad, with or without a graph.
    """

    def __init__(self) -> None:
        self.leaves: dict[int, Reference] = {}
        self.own: dict[str, None] = {}


_state = dropped_at_end(_State())


def alive() -> list[Any]:
    """The leaves that the program has pickled and that still exist."""
    return [leaf for one in list(_state.leaves.values()) if (leaf := one()) is not None]


def is_own(values: str) -> bool:
    """Whether a tensor with this digest, which is no parameter, was pickled here."""
    return values in _state.own


def of(values: Collection[str]) -> list[Any]:
    """The leaves that the program has pickled and that have one of these digests now.

    Args:
        values: digests of tensors (`copies.digest`).
    """
    return [leaf for leaf in alive() if digest(leaf) in values] if values else []


def any_pickled() -> bool:
    """Whether there is such a leaf."""
    return bool(_state.leaves)


def apply() -> None:
    """Record, from now on, what the program pickles."""
    frameworks.watch_reductions()
    for source in (tensors.pickled, sharing.sent):
        source.subscribe(_note)


def _note(tensor: Any) -> None:
    identity = id(tensor)
    leaves, own = _state.leaves, _state.own
    if identity in leaves or not tensors.requires_grad(tensor):
        return
    if tensors.history(tensor) is None:
        leaves[identity] = refer(tensor, functools.partial(leaves.pop, identity, None))
    if not isinstance(tensor, torch.nn.Parameter):
        own[digest(tensor) or ""] = None
        if len(own) > _MOST:
            del own[next(iter(own))]
