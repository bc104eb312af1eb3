"""GG305: generators of modules, of which each forked worker has inherited a copy.

Nothing pickles them, so that they are found by the globals that the tasks use. In a worker they are
what they were in the parent as long as they lie at the same address.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from pytest_gradguard.runtime import used_globals
from pytest_gradguard.runtime.checks import gg305
from pytest_gradguard.runtime.code_names import Chain
from pytest_gradguard.runtime.probes import After
from pytest_gradguard.runtime.tasks import code_of

_MANY = 200
_places: dict[Any, list[tuple[str, Chain]]] = {}
"""By the code of a task: the modules and names of the generators that it uses."""


class Inherited(NamedTuple):
    """A generator of a module of the parent's.

    Attributes:
        number: its number among those of the call.
        identity: its id.
        module, path: where it stands.
    """

    number: int
    identity: int
    module: str
    path: Chain


# -- in the parent ---------------------------------------------------------------------------------


def ship(call: Any, items: Any) -> list[Inherited] | None:
    """The generators of modules that the functions of a batch use."""
    found: dict[int, Inherited] = {}
    previous = None
    for function, _, _ in items:
        if function is previous:
            continue
        previous = function
        for module, path in _places_of(function):
            generator = _at(module, path)
            if generator is not None:
                number = gg305.number(call, generator)
                found[number] = Inherited(number, id(generator), module, path)
    return list(found.values()) or None


def _places_of(function: Any) -> list[tuple[str, Chain]]:
    code = code_of(function)
    if code is None:
        return []
    known = _places.get(code)
    if known is None:
        if len(_places) >= _MANY:
            _places.clear()
        reads = gg305.read_by(function)
        known = _places[code] = [(str(read.module), read.path) for read in reads]
    return known


def _at(module: str, path: Chain) -> Any:
    loaded = sys.modules.get(module)
    return None if loaded is None else used_globals.value_at(loaded, path)


def heard(call: Any, note: list[gg305.Drawn]) -> None:
    """Report copies of one generator that gave the same numbers."""
    gg305.heard(call, note)


# -- in the worker ---------------------------------------------------------------------------------


def begin(asked: list[Inherited], process: bool) -> After | None:
    """Look at the generators that this worker has inherited; one that was not forked has others."""
    if not process:
        return None
    known = [
        (one.number, generator)
        for one in asked
        if (generator := _at(one.module, one.path)) is not None and id(generator) == one.identity
    ]
    return gg305.look(known) if known else None
