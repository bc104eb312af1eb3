"""Why a gradient is missing: the closed set of reasons, each with the evidence behind it.

Reasons compare by value, so that tensors with the same reason are reported together. Their texts
hold both numbers, ``[it was|they were]``.
"""

from __future__ import annotations

from pytest_gradguard.gradients.reasons.base import (
    OR_ALLOW,
    MeantToStay,
    Reason,
    at,
    in_number,
    step,
)
from pytest_gradguard.gradients.reasons.graph import (
    Cut,
    Frozen,
    GradModeOff,
    NeverBackward,
    NotDifferentiable,
    NotInGraph,
    NotTrainable,
)
from pytest_gradguard.gradients.reasons.outside import (
    Cleared,
    CutAtWorker,
    Gone,
    InContext,
    LeftInWorker,
    NonLeaf,
    NotAsked,
    OtherParameters,
    OtherThread,
    Replaced,
    Unknown,
)
from pytest_gradguard.gradients.reasons.values import (
    AllZero,
    NotBuilt,
    NotFinite,
    NotProduced,
    NotWatched,
    OutsideTape,
    TrainedToNonFinite,
)

__all__ = [
    "OR_ALLOW",
    "AllZero",
    "Cleared",
    "Cut",
    "CutAtWorker",
    "Frozen",
    "Gone",
    "GradModeOff",
    "InContext",
    "LeftInWorker",
    "MeantToStay",
    "NeverBackward",
    "NonLeaf",
    "NotAsked",
    "NotBuilt",
    "NotDifferentiable",
    "NotFinite",
    "NotInGraph",
    "NotProduced",
    "NotTrainable",
    "NotWatched",
    "OtherParameters",
    "OtherThread",
    "OutsideTape",
    "Reason",
    "Replaced",
    "TrainedToNonFinite",
    "Unknown",
    "at",
    "in_number",
    "step",
]
