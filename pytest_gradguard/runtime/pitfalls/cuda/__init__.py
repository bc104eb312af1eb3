"""Sees each attempt to initialise CUDA, in whichever process.

`attempts` holds them; `torch`, `loading` (also torch's), `cupy` and `tensorflow` see those of the
frameworks, `driver` what torch starts the driver by and no more, and `errors` finds them behind the
error of a task; `contexts` asks the driver what the contexts cost.
"""

from pytest_gradguard.runtime.pitfalls.cuda.attempts import (
    VARIABLE,
    Attempt,
    earlier,
    first_need,
    first_start,
    is_up,
    needed,
    note_after_fork,
    note_earlier,
    renew,
    starts,
    take,
    take_lost,
    tell,
    up,
)
from pytest_gradguard.runtime.pitfalls.cuda.torch import apply, undo

__all__ = [
    "VARIABLE",
    "Attempt",
    "apply",
    "earlier",
    "first_need",
    "first_start",
    "is_up",
    "needed",
    "note_after_fork",
    "note_earlier",
    "renew",
    "starts",
    "take",
    "take_lost",
    "tell",
    "undo",
    "up",
]
