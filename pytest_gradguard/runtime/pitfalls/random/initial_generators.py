"""GG305: generators that a pool passes to the initializer of its workers.

Each worker has a copy, which the initializer keeps for the tasks. It is found in the worker among
the arguments of the loop that it runs in.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.random import gg305, random_states

_ARGUMENTS = "initargs"
"""The parameter's name in the worker loops of all libraries."""
_FRAMES = 30
"""How many frames are searched for the worker loop."""

# -- in the parent ---------------------------------------------------------------------------------

_known: ByIdentity[dict[str, int]] = dropped_at_end(ByIdentity())
"""The numbers of a pool's generators, by path."""


def ship(call: Any, items: Any) -> dict[str, int] | None:
    """Return the generators that the pool has passed to the workers of `call`."""
    pool = None if call.pool is None else call.pool()
    arguments = getattr(pool, "_initargs", ())
    if not arguments:
        return None
    known = _known.get(pool)
    if known is None:
        found = gg305.generators_in((None, arguments, {}), wide=gg305.WIDE)
        known = _known[pool] = {path: next(random_states.numbers) for path in found}
    return known or None


def on_note(call: Any, note: list[gg305.Drawn]) -> None:
    """Report copies of one generator that gave the same numbers."""
    gg305.on_note(call, note)


# -- in the worker ---------------------------------------------------------------------------------


def begin(asked: dict[str, int], process: bool) -> After | None:
    """Record the generators that this worker's initializer got."""
    arguments = _given() if process else ()
    if not arguments:
        return None
    found = gg305.generators_in((None, arguments, {}), wide=gg305.WIDE)
    known = [(asked[path], one) for path, one in found.items() if path in asked]
    return gg305.look(known) if known else None


def _given() -> Any:
    """The arguments of this worker's initializer."""
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if _ARGUMENTS in code.co_varnames[: code.co_argcount]:
            return frame.f_locals[_ARGUMENTS]
        frame = frame.f_back
    return ()
