"""What stands where in the bytes of a file: what is given to calls, names and containers."""

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
"""What is given something to keep, with its annotation, or goes through it."""
_ITSELF = rb"\b(?![ \t]*(?:\(|\.(?!copy\b|items\b|values\b)))"
"""What stands after the name of a thing that is given on, or all that it holds."""
_GIVEN_ON = _ITSELF + rb"(?![ \t]*=(?!=))"
"""The same, where the name is not what is set."""
_FOLLOWED = 10_000
"""In so many bytes, a function or a script, what keeps a thing is looked for."""
_KEPT = 2000
"""So many bytes are read of what it is given."""
_GIVEN = rb"[=(\[{,:][ \t]*[\w.]*\Z"
_ASKS = b"isinstance("
_CHAIN = re.compile(rb"\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def taken_from(data: bytes, name: str) -> set[str] | None:
    """The dotted names that are read from what is called `name`; None where it is used itself."""
    found = set()
    for place in _named(data, name.encode(), b""):
        if before(data, place).lstrip().startswith((b"import ", b"from ")):
            continue
        chain = _CHAIN.match(data, place + len(name))
        if chain is None:
            return None
        found.add(chain.group(1).decode())
    return found


def handed_out(data: bytes) -> Iterator[bytes]:
    """What is given to calls that hand out work."""
    first = re.compile(rb"\(\s*([A-Za-z_][\w.]*)")
    for match in matches(data, *HANDED_OUT):
        given = first.match(data, match.end())
        if given is not None:
            yield given.group(1)
    for match in matches(data, (b"target",), rb"\btarget[ \t]*=[ \t]*([A-Za-z_][\w.]*)"):
        yield match.group(1)


def is_given(data: bytes, place: int) -> bool:
    """Whether what stands at `place` is given a name, or to a call that may run it."""
    line = before(data, place)
    return re.search(_GIVEN, line) is not None and b"import" not in line and _ASKS not in line


def given_to(data: bytes, place: int) -> bytes:
    """The name that is set, or an item of which is, to what stands at `place`; b"" for none."""
    found = re.search(_GIVEN_TO, before(data, place))
    return b"" if found is None else found.group(1)


def kept_by(data: bytes, place: int) -> Iterator[bytes]:
    """The names of what is given, in brackets, what is made by the call at `place`; none where that
    is asked for something at once."""
    end = _closed(data, data.find(b"(", place))
    if data[end : end + 1] == b".":
        return
    opened = _opening(data, place)
    if opened < 0:
        return
    for it in re.finditer(_KEEPS, before(data, opened + 1)):
        yield from words_of(b" ".join(filter(None, it.groups())))


def holders(data: bytes, name: bytes, wanted: Set[bytes]) -> Iterator[bytes]:
    """The names of what is given the thing that is called `name`, to keep it or to go through it,
    and of what is given these in turn; none, where none of these can be `wanted`."""
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
    """Where functions use attributes of the variable `name`, or give it on."""
    for then in (rb"\.", _GIVEN_ON):
        for place in _named(data, name, then):
            if before(data, place)[:1].isspace():
                yield place


def _named(data: bytes, name: bytes, then: bytes) -> Iterator[int]:
    """Where `data` has that name, by itself, and `then` after it."""
    follows = re.compile(then)
    place = data.find(name)
    while place >= 0:
        last = data[place - 1 : place]
        alone = not (last.isalnum() or last in (b"_", b"."))
        if alone and follows.match(data, place + len(name)) is not None:
            yield place
        place = data.find(name, place + len(name))


def _line_end(data: bytes, place: int) -> int:
    """Where the line of code ends that goes on at `place`, or the brackets around that."""
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
    """Whether a statement at the left margin gives on what stands at `place`, and is made there."""
    if before(data, place)[:1].isspace():
        return False
    name = given_to(data, place)
    return not name or any(
        not before(data, at)[:1].isspace() for at in _named(data, name, _GIVEN_ON) if at > place
    )


def is_passed_on(data: bytes, place: int) -> bool:
    """Whether an object gets what stands at `place` for its attribute, or a function gives it
    back."""
    return re.search(rb"\bself\.|\breturn\b|\blambda\b", before(data, place)) is not None


def around(data: bytes, place: int) -> bytes:
    """The function or class around `place`; the whole of `data`, where it is in none."""
    start = data.rfind(b"\n", 0, place)
    while start >= 0 and data[start + 1 : start + 2] in b" \t\r\n)":
        start = data.rfind(b"\n", 0, start)
    if not data.startswith((b"\ndef ", b"\nclass ", b"\nasync "), max(start, 0)):
        return data
    end = re.compile(rb"\n[^\s)#]").search(data, place)
    return data[start : end.start() if end is not None else len(data)]


def calls(data: bytes, called: tuple[tuple[bytes, ...], bytes]) -> Iterator[bytes]:
    """The arguments of each call of `called`, literals and their pattern; where what is called
    gives something that is called at once, the arguments of that too."""
    for match in matches(data, *called):
        end = _closed(data, match.end())
        if data[end : end + 1] == b"(":
            end = _closed(data, end)
        yield data[match.end() : end]


def _opening(data: bytes, place: int) -> int:
    """Where the outermost of the brackets opens that are open at `place`, of those of the nearest
    line that opens any; -1 where there are none."""
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
    """The beginning of the call around `place`, up to its bracket."""
    depth = 0
    for at in range(place - 1, max(place - 2000, -1), -1):
        sign = data[at : at + 1]
        depth += (sign == b")") - (sign == b"(")
        if depth < 0:
            return data[max(at - 40, 0) : at].rstrip()
    return b""
