"""GG305: generators of modules, of which each forked worker has inherited a copy.

They are not pickled, so they are found by the globals that the tasks use. A worker has inherited
one if it is at the same address as in the parent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import used_globals
from pytest_gradguard.runtime.kernel.code_names import Chain
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import code_of, function_of, is_the_users
from pytest_gradguard.runtime.pitfalls.random import gg305

_MANY = 200
_places: dict[CodeType, Sequence[tuple[str, Chain]]] = {}
"""The modules and names of the generators that a task uses, by its code."""


class Inherited(NamedTuple):
    """A generator in a module of the parent.

    Attributes:
        number: its number among those of the call.
        identity: its id.
        module, path: where it is stored.
    """

    number: int
    identity: int
    module: str
    path: Chain


# -- in the parent ---------------------------------------------------------------------------------


def ship(call: Any, items: Any) -> list[Inherited] | None:
    """Return the generators of modules that the functions of a batch use."""
    found: dict[int, Inherited] = {}
    previous = None
    for item in items:
        if item[0] is previous:
            continue
        previous = item[0]
        for module, path in _places_in(item):
            generator = _at(module, path)
            if generator is not None:
                number = gg305.number(call, generator)
                found[number] = Inherited(number, id(generator), module, path)
    return list(found.values()) or None


def _places_in(item: Any) -> Iterable[tuple[str, Chain]]:
    function = item[0]
    code = code_of(function)
    if code is None:
        return ()
    known = _places.get(code)
    if known is None:
        if len(_places) >= _MANY:
            _places.clear()
        known = _places[code] = _places_of(function)
    if known is not _IN_A_LIBRARY:
        return known
    given = [one for one in gg305.own_functions(item) if one is not function]
    return [place for one in given for place in _places_in((one, (), {}))]


def _places_of(function: Any) -> Sequence[tuple[str, Chain]]:
    if not is_the_users(function_of(function)):
        return _IN_A_LIBRARY
    return [(str(read.module), read.path) for read in gg305.read_by(function)]


_IN_A_LIBRARY: tuple[tuple[str, Chain], ...] = (("", ()),)
"""Stands for a library's function, which runs functions passed to it."""


def _at(module: str, path: Chain) -> Any:
    loaded = sys.modules.get(module)
    return None if loaded is None else used_globals.value_at(loaded, path)


def on_note(call: Any, note: list[gg305.Drawn]) -> None:
    """Report copies of one generator that gave the same numbers."""
    gg305.on_note(call, note)


# -- in the worker ---------------------------------------------------------------------------------


def begin(asked: list[Inherited], process: bool) -> After | None:
    """Record the generators that this worker has inherited; unless forked, it has other ones."""
    if not process:
        return None
    known = [
        (one.number, generator)
        for one in asked
        if (generator := _at(one.module, one.path)) is not None and id(generator) == one.identity
    ]
    return gg305.look(known) if known else None
