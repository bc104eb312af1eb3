"""Sees each attempt to initialise CUDA, in whichever process.

`attempts` holds them; `torch`, `loading` (also torch's), `cupy` and `tensorflow` see those of the
frameworks, `driver` what torch starts the driver by and no more, and `errors` finds them behind the
error of a task; `earlier` knows of one before the guard; `contexts` asks what contexts cost.
"""

from pytest_gradguard.runtime.pitfalls.cuda.attempts import (
    VARIABLE,
    Attempt,
    first_start,
    is_up,
    needed,
    note_after_fork,
    renew,
    state,
    take,
    take_lost,
    tell,
    up,
)
from pytest_gradguard.runtime.pitfalls.cuda.torch import apply

__all__ = [
    "VARIABLE",
    "Attempt",
    "apply",
    "first_start",
    "is_up",
    "needed",
    "note_after_fork",
    "renew",
    "state",
    "take",
    "take_lost",
    "tell",
    "up",
]
