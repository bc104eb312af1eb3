"""GG305: generators that a pool gives to the initializer of its workers.

Each worker has a copy of them, and the initializer keeps it for the tasks. It is found where the
worker has it: among the arguments of the function that it runs in.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.random import gg305, random_states

_ARGUMENTS = "initargs"
"""What the loops of workers call it, of each library's."""
_FRAMES = 30
"""How far it is looked for what a worker runs in."""

# -- in the parent ---------------------------------------------------------------------------------

_known: ByIdentity[dict[str, int]] = dropped_at_end(ByIdentity())
"""By a pool: the numbers of its generators, by their paths."""


def ship(call: Any, items: Any) -> dict[str, int] | None:
    """The generators that its pool has given to the workers of `call`."""
    pool = None if call.pool is None else call.pool()
    arguments = getattr(pool, "_initargs", ())
    if not arguments:
        return None
    known = _known.get(pool)
    if known is None:
        found = gg305.generators_in((None, arguments, {}), wide=gg305.WIDE)
        known = _known[pool] = {path: next(random_states.numbers) for path in found}
    return known or None


def heard(call: Any, note: list[gg305.Drawn]) -> None:
    """Report copies of one generator that gave the same numbers."""
    gg305.heard(call, note)


# -- in the worker ---------------------------------------------------------------------------------


def begin(asked: dict[str, int], process: bool) -> After | None:
    """Look at the generators that this worker was given."""
    arguments = _given() if process else ()
    if not arguments:
        return None
    found = gg305.generators_in((None, arguments, {}), wide=gg305.WIDE)
    known = [(asked[path], one) for path, one in found.items() if path in asked]
    return gg305.look(known) if known else None


def _given() -> Any:
    """What the initializer of this worker was given."""
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if _ARGUMENTS in code.co_varnames[: code.co_argcount]:
            return frame.f_locals[_ARGUMENTS]
        frame = frame.f_back
    return ()
