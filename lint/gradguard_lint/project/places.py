"""Positions in the bytes of a file: arguments, assignments, containers and calls."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Set

from gradguard_lint.project.literals import before, matches, words_of
from gradguard_lint.project.marks import HANDED_OUT

_GIVEN_TO = rb"\b(\w+)(?:[ \t]*\[[^\]\n]{0,80}\]){0,3}[ \t]*=[ \t]*[\w.]*\Z"
_KEEPS = (
    rb"\b(\w+)(?:[ \t]*\[[^\]\n]{0,80}\])?(?:(?:[ \t]*:([^=\n()]{1,80}?))?[ \t]*\+?=(?!=)"
    rb"|\.(?:add|append|appendleft|extend|insert|put|setdefault|update)\b)"
    rb"|\bfor[ \t]([\w \t,()]{1,80}?)[ \t]in\b"
)
"""A container or target that keeps an object, with its annotation, or a loop over it."""
_ITSELF = rb"\b(?![ \t]*(?:\(|\.(?!copy\b|items\b|values\b)))"
"""What follows the name of an object that is passed on whole."""
_GIVEN_ON = _ITSELF + rb"(?![ \t]*=(?!=))"
"""As `_ITSELF`, except for assignments to the name."""
_FOLLOWED = 10_000
"""The size up to which aliases of an object are followed."""
_KEPT = 2000
"""The size up to which an argument is read."""
_GIVEN = rb"[=(\[{,:][ \t]*[\w.]*\Z"
_ASKS = b"isinstance("
_CHAIN = re.compile(rb"\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def used_names(data: bytes, name: str) -> set[str] | None:
    """The dotted names used of `name`; None if it is used itself."""
    found = set()
    for place in _named(data, name.encode(), b""):
        if before(data, place).lstrip().startswith((b"import ", b"from ")):
            continue
        chain = _CHAIN.match(data, place + len(name))
        if chain is None:
            return None
        found.add(chain.group(1).decode())
    return found


def dispatched_names(data: bytes) -> Iterator[bytes]:
    """The first arguments of calls that dispatch work."""
    first = re.compile(rb"\(\s*([A-Za-z_][\w.]*)")
    for match in matches(data, *HANDED_OUT):
        given = first.match(data, match.end())
        if given is not None:
            yield given.group(1)
    for match in matches(data, (b"target",), rb"\btarget[ \t]*=[ \t]*([A-Za-z_][\w.]*)"):
        yield match.group(1)


def is_given(data: bytes, place: int) -> bool:
    """Whether the value at `place` gets a name, or is an argument of a call that may run it."""
    line = before(data, place)
    return re.search(_GIVEN, line) is not None and b"import" not in line and _ASKS not in line


def assigned_name(data: bytes, place: int) -> bytes:
    """The name that is set to the value at `place`, or whose item is; b"" for none."""
    found = re.search(_GIVEN_TO, before(data, place))
    return b"" if found is None else found.group(1)


def container_names(data: bytes, place: int) -> Iterator[bytes]:
    """The names that keep the object created at `place`; none if it is used at once."""
    end = _closed(data, data.find(b"(", place))
    if data[end : end + 1] == b".":
        return
    opened = _opening(data, place)
    if opened < 0:
        return
    for it in re.finditer(_KEEPS, before(data, opened + 1)):
        yield from words_of(b" ".join(filter(None, it.groups())))


def holders(data: bytes, name: bytes, wanted: Set[bytes]) -> Iterator[bytes]:
    """The names that keep, or loop over, the object `name`, transitively; none unless one is
    `wanted`."""
    if not wanted or len(data) > _FOLLOWED or not any(_named(data, name, _GIVEN_ON)):
        return
    given = [
        (words_of(b" ".join(filter(None, it.groups()))), it.end())
        for it in re.finditer(_KEEPS, data)
    ]
    if all(names.isdisjoint(wanted) for names, _ in given):
        return
    ends: dict[int, int] = {}
    found, waiting = {name}, [name]
    while waiting:
        there = [*_named(data, waiting.pop(), _ITSELF)]
        for names, place in given:
            at = bisect(there, place - 1)
            if names <= found or at == len(there) or there[at] >= place + _KEPT:
                continue
            if place not in ends:
                ends[place] = _line_end(data, place)
            if there[at] < ends[place]:
                waiting += names - found
                yield from names - found
                found |= names


def uses_of(data: bytes, name: bytes) -> Iterator[int]:
    """Where functions use attributes of the variable `name`, or pass it on."""
    for then in (rb"\.", _GIVEN_ON):
        for place in _named(data, name, then):
            if before(data, place)[:1].isspace():
                yield place


def _named(data: bytes, name: bytes, then: bytes) -> Iterator[int]:
    """The positions of that name as a word, followed by `then`."""
    follows = re.compile(then)
    place = data.find(name)
    while place >= 0:
        last = data[place - 1 : place]
        alone = not (last.isalnum() or last in (b"_", b"."))
        if alone and follows.match(data, place + len(name)) is not None:
            yield place
        place = data.find(name, place + len(name))


def _line_end(data: bytes, place: int) -> int:
    """The end of the logical line at `place`, or of the brackets around it."""
    depth, last = 0, min(place + _KEPT, len(data))
    for sign in re.compile(rb"[()\[\]{}\n]").finditer(data, place, last):
        if sign.group() in b"([{":
            depth += 1
        elif sign.group() != b"\n":
            depth -= 1
        if depth < 0 or (not depth and sign.group() == b"\n"):
            return sign.start()
    return last


def is_given_on_at_margin(data: bytes, place: int) -> bool:
    """Whether a module-level statement passes on the value at `place`, created there."""
    if before(data, place)[:1].isspace():
        return False
    name = assigned_name(data, place)
    return not name or any(
        not before(data, at)[:1].isspace() for at in _named(data, name, _GIVEN_ON) if at > place
    )


def is_passed_on(data: bytes, place: int) -> bool:
    """Whether the value at `place` becomes an attribute, or is returned."""
    return re.search(rb"\bself\.|\breturn\b|\blambda\b", before(data, place)) is not None


def around(data: bytes, place: int) -> bytes:
    """The top-level function or class around `place`; all of `data` if there is none."""
    start = data.rfind(b"\n", 0, place)
    while start >= 0 and data[start + 1 : start + 2] in b" \t\r\n)":
        start = data.rfind(b"\n", 0, start)
    if not data.startswith((b"\ndef ", b"\nclass ", b"\nasync "), max(start, 0)):
        return data
    end = re.compile(rb"\n[^\s)#]").search(data, place)
    return data[start : end.start() if end is not None else len(data)]


def calls(data: bytes, called: tuple[tuple[bytes, ...], bytes]) -> Iterator[bytes]:
    """The arguments of each call of `called`; also those of a call of its result."""
    for match in matches(data, *called):
        end = _closed(data, match.end())
        if data[end : end + 1] == b"(":
            end = _closed(data, end)
        yield data[match.end() : end]


def _opening(data: bytes, place: int) -> int:
    """The outermost open bracket at `place`, on the nearest line with one; -1 if there is none."""
    found, depth, line = -1, 0, data.rfind(b"\n", 0, place) + 1
    end, first = place, max(place - _KEPT, 0)
    while True:
        for sign in reversed([*re.compile(rb"[()\[\]{}]").finditer(data, line, end)]):
            depth += 1 if sign.group() in b")]}" else -1
            if depth < 0:
                found, depth = sign.start(), 0
        if found >= 0 or line <= first or not data[line : line + 1].isspace():
            return found
        end, line = line - 1, data.rfind(b"\n", 0, line - 1) + 1


def _closed(data: bytes, place: int) -> int:
    """The end of the brackets that open at `place`."""
    depth = 0
    for found in re.compile(rb"[()]").finditer(data, place):
        depth += 1 if found.group() == b"(" else -1
        if not depth:
            return found.end()
    return len(data)


def caller(data: bytes, place: int) -> bytes:
    """The text before the opening bracket of the call around `place`."""
    depth = 0
    for at in range(place - 1, max(place - 2000, -1), -1):
        sign = data[at : at + 1]
        depth += (sign == b")") - (sign == b"(")
        if depth < 0:
            return data[max(at - 40, 0) : at].rstrip()
    return b""
