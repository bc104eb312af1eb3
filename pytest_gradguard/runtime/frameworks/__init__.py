"""Which objects carry gradients; one module a framework, used once the program has imported it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gradguard.runtime.patching import Patches

_torch: Patches | None = None


def watch_reductions() -> None:
    """Make the tensors of every framework that is loaded report to the active crossing."""
    global _torch
    if _torch is None:
        if "torch.nn.parameter" not in sys.modules:
            return
        from pytest_gradguard.runtime.frameworks.torch import reductions

        _torch = reductions
    if not _torch.applied:
        _torch.apply()
        from pytest_gradguard.runtime.frameworks import torch_sharing

        torch_sharing.reductions.apply()


def undo() -> None:
    """Undo `watch_reductions`."""
    if _torch is not None:
        _torch.undo()
    sharing = sys.modules.get(f"{__name__}.torch_sharing")
    if sharing is not None:
        sharing.reductions.undo()


def shares_memory(tensor: object) -> bool:
    """Whether the standard library's pickler ships `tensor` by sharing its memory."""
    sharing = sys.modules.get(f"{__name__}.torch_sharing")
    return sharing is not None and type(tensor) in sharing.KINDS


def loaded() -> bool:
    """Whether the program has imported a framework with gradients."""
    return "torch.nn.parameter" in sys.modules


def buried_result(tensor: object) -> bool:
    """Whether `tensor` came back from a worker inside another object.

    Where that object goes to workers again, as fitted estimators do to predict, what it keeps of
    its training goes along: nobody expects a gradient of it.
    """
    provenance = sys.modules.get("pytest_gradguard.runtime.provenance")
    return provenance is not None and provenance.is_buried(tensor)
