"""Why a gradient is missing: the closed set of reasons, each with the evidence behind it.

Reasons compare by value, so that tensors with the same reason are reported together.
"""

from pytest_gradguard.gradients.reasons.base import Reason, at, in_number, step
from pytest_gradguard.gradients.reasons.graph import (
    Cut,
    Frozen,
    GradModeOff,
    NeverBackward,
    NotDifferentiable,
    NotInGraph,
    NotTrainable,
)
from pytest_gradguard.gradients.reasons.objects import (
    Cleared,
    Gone,
    NonLeaf,
    NotAsked,
    OtherParameters,
    Replaced,
)
from pytest_gradguard.gradients.reasons.tapes import NotBuilt, NotProduced, NotWatched, OutsideTape
from pytest_gradguard.gradients.reasons.unknown import Unknown
from pytest_gradguard.gradients.reasons.values import AllZero, NotFinite
from pytest_gradguard.gradients.reasons.workers import CutAtWorker, LeftInWorker, OtherThread

__all__ = [
    "AllZero",
    "Cleared",
    "Cut",
    "CutAtWorker",
    "Frozen",
    "Gone",
    "GradModeOff",
    "LeftInWorker",
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
    "Unknown",
    "at",
    "in_number",
    "step",
]
