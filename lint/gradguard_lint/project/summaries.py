"""Digests of what programs use of a file whose names they only resolve.

If a file changes but its summary doesn't, findings of such programs stay valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gradguard_lint.engine.footprint import Binding, Footprint, Place
from gradguard_lint.project.cache import digest
from gradguard_lint.project.marks import joins_a_group

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.reader import Reader


def summary(read: Reader, path: str) -> str:
    """The digest of the facts used of the file at `path` without running it."""
    if path not in read.summaries:
        read.summaries[path] = digest(_told(read, path))
    return read.summaries[path]


def _told(read: Reader, path: str) -> bytes | None:
    data = read(path)
    seen = read.footprint(path, data, "", "") if data is not None else None
    if data is None or seen is None:
        return data
    said = (
        sorted(read.decorators(path, data)),
        *(read.imported(path, data), read.sets_up(path, data)),
        *(joins_a_group(data), b"__version__" in data),
    )
    return "\n".join(chain([repr(said)], _parts(seen))).encode()


def _parts(seen: Footprint) -> Iterator[str]:
    """The footprint as lines, with functions numbered, independent of line numbers."""
    places = (place for places in (seen.written, seen.given) for place in places)
    scopes = {it.scope for it in seen.bindings} | {scope for scope, _ in places}
    numbers = {scope: number for number, scope in enumerate(sorted(scopes))}

    def placed(places: Iterable[Place]) -> str:
        return _words(f"{numbers[scope]} {name}" for scope, name in places)

    def bound(it: Binding) -> str:
        return f"{_words(it.names)};{_words(it.attributes)};{_said(it.said)};{numbers[it.scope]}"

    yield f"{_words(seen.loaded)};{seen.imports};{_words(seen.shared)}"
    yield from (f"{bound(it)};{it.held}" for it in seen.bindings)
    yield from (f"{name}:{_said(said)}" for name, said in seen.definitions.values())
    yield from (f"{_said(said)}:{_said(extended)}" for said, extended in seen.inheriting)
    yield f"{placed(seen.written)};{placed(seen.given)}"
    for name, methods in seen.methods.items():
        yield from (f"{name}.{method}:{_said(said)}" for method, said in methods.items())
    for table in (seen.read_from, seen.bodies, seen.filled):
        yield from (f"{name}:{_said(said)}" for name, said in table.items())
    yield from (f"{name}:{sorted(found)}" for name, found in seen.decorators.items())


def _said(words: Iterable[str]) -> str:
    """Words without those for writes, which contain line numbers."""
    return _words(it for it in words if " " not in it)


def _words(words: Iterable[str]) -> str:
    return ",".join(sorted(words))
