"""Leaves that the program pickles itself, for a process that may run already, or into a file.

No call ships them. When a process tells of what it computed with a copy, its values say of which.
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

_pickled: dict[int, Reference] = {}
_own: dict[str, None] = {}
"""What tells which the other tensors that require grad are that were pickled, with a graph or
without: the last of them."""
_MOST = 1_024


def alive() -> list[Any]:
    """The leaves that the program has pickled, as far as they are still there."""
    return [leaf for one in list(_pickled.values()) if (leaf := one()) is not None]


def is_own(values: str) -> bool:
    """Whether a tensor with these `values`, which is no parameter, was pickled here."""
    return values in _own


def of(values: Collection[str]) -> list[Any]:
    """The leaves that the program has pickled, and that have one of these `values` now.

    Args:
        values: what tells which tensors they are (`copies.digest`).
    """
    return [leaf for leaf in alive() if digest(leaf) in values] if values else []


def any_pickled() -> bool:
    """Whether there is such a leaf."""
    return bool(_pickled)


def apply() -> None:
    """Look, from now on, at what the program pickles."""
    frameworks.watch_reductions()
    for told in (tensors.pickled, sharing.sent):
        if _note not in told:
            told.append(_note)


def undo() -> None:
    """Look at it no longer."""
    for told in (tensors.pickled, sharing.sent):
        if _note in told:
            told.remove(_note)
    _pickled.clear()
    _own.clear()


def _note(tensor: Any) -> None:
    identity = id(tensor)
    if identity in _pickled or not tensors.requires_grad(tensor):
        return
    if tensors.history(tensor) is None:
        _pickled[identity] = refer(tensor, functools.partial(_pickled.pop, identity, None))
    if not isinstance(tensor, torch.nn.Parameter):
        _own[digest(tensor) or ""] = None
        if len(_own) > _MOST:
            del _own[next(iter(_own))]
