"""Functions that were pickled by value, and cannot say in their worker where they were written.

Their globals know the file (`callsite.written_in`), unless they are of a notebook or of a prompt:
then the `__main__` of the parent has them still.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FunctionType
from typing import TypeVar

from pytest_gradguard.findings import Finding, Location, TraceStep
from pytest_gradguard.runtime.callsite import DYNAMIC

_Place = TypeVar("_Place", Location, TraceStep)


def placed(finding: Finding) -> Finding:
    """`finding`, with the files that its workers could not name."""
    if not any(place.path == DYNAMIC for place in (finding.location, *finding.trace)):
        return finding
    trace = tuple(_named(step) for step in finding.trace)
    return replace(finding, location=_named(finding.location), trace=trace)


def _named(place: _Place) -> _Place:
    if place.path != DYNAMIC:
        return place
    fits = [code for code in _codes() if place.line in _lines(code)]
    files = {code.co_filename for code in fits}
    if len(files) > 1:  # cells begin at line 1 each: the place names the function, too
        files = {code.co_filename for code in fits if _is_of(place, code.co_name)}
    return replace(place, path=files.pop()) if len(files) == 1 else place


def _is_of(place: Location | TraceStep, name: str) -> bool:
    """Whether `place` speaks of the function `name`."""
    if isinstance(place, Location):
        return (place.function or "").rpartition(".")[2] == name
    return f"`{name}`" in place.message


def _codes() -> Iterator[CodeType]:
    """The code of what stands in `__main__`, and of the functions in it."""
    held = list(vars(sys.modules["__main__"]).values())
    held += [one for cls in held if isinstance(cls, type) for one in vars(cls).values()]
    codes = [one.__code__ for one in held if type(one) is FunctionType]
    while codes:
        code = codes.pop()
        yield code
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]


def _lines(code: CodeType) -> set[int | None]:
    return {line for _, _, line in code.co_lines()}
