"""Records each attempt to initialise CUDA, in any process.

`attempts` holds them. `torch`, `loading` (also torch), `cupy` and `tensorflow` detect those of the
frameworks, `driver` the calls by which torch only starts the driver, and `errors` those behind the
error of a task. `earlier` records an attempt before the guard; `contexts` measures context memory.
"""

from pytest_gradguard.runtime.pitfalls.cuda.attempts import (
    VARIABLE,
    Attempt,
    first_start,
    is_up,
    listen,
    needed,
    note_after_fork,
    renew,
    state,
    take,
    take_lost,
    up,
)
from pytest_gradguard.runtime.pitfalls.cuda.torch import apply

__all__ = [
    "VARIABLE",
    "Attempt",
    "apply",
    "first_start",
    "is_up",
    "listen",
    "needed",
    "note_after_fork",
    "renew",
    "state",
    "take",
    "take_lost",
    "up",
]
