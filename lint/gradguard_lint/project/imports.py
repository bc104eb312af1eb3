"""Imports of a file, from its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

Imported = tuple[str, str, str]
"""A module, a name in it ("" for the module itself, "*" for all), and the local name."""

_IMPORT = (
    rb"(?:\xef\xbb\xbf)?[ \t\f]*"
    rb"(?:from[ \t\f]+(\.*[\w.]*)[ \t\f]+import[ \t\f]*(\([^)]*\)|[^\n;#]+)"
    rb"|import[ \t\f]+([^\n;#]+))"
)
"""An import, from the start of its line."""

_CALLED = (
    rb"[ \t\f]*(?:(\w+)[ \t]*=[ \t]*)?(?:importlib\.)?import_module"
    rb"\([ \t]*[\"']([\w.]+)[\"'][ \t]*\)"
)
"""An import by ``import_module``: the local name, and the module."""

_CONTINUED = re.compile(rb"\\\r?\n")


def import_lines(data: bytes) -> bytes:
    """Lines of `data` with an import, up to the closing bracket."""
    parts = data.split(b"import")
    if len(parts) == 1:
        return b""
    lines = []
    before, goes_on, bracket = parts[0], False, False
    for after in parts[1:]:
        if not goes_on:
            start = before.rfind(b"\n") + 1
            if start > 2 and before[start - 3 : start].rstrip().endswith(b"\\"):
                start = before.rfind(b"\n", 0, start - 1) + 1
            lines.append(before[start:])
            bracket = after[:2].strip() == b"("
        end = after.find(b")") + 1 or -1 if bracket else after.find(b"\n")
        while end >= 0 and after[:end].rstrip(b"\r").endswith(b"\\"):
            end = after.find(b"\n", end + 1)
        goes_on = end < 0  # an imported name may contain the word
        lines.append(b"import" + (after if goes_on else after[:end] + b"\n"))
        before = after
    lines.append(b"\n")
    found = b"".join(lines)
    return _CONTINUED.sub(b" ", found) if b"\\" in found else found


def dotted_names(imported: Iterable[Imported]) -> list[str]:
    """The dotted names in imports, relative ones with dots."""
    found: dict[str, None] = {}
    for base, name, _ in imported:
        found[base] = None
        if name not in ("", "*"):
            found[base + name if base.endswith(".") else f"{base}.{name}"] = None
    return [*found]


def imported_names(data: bytes) -> list[Imported]:
    """The imports of `data`; relative modules with dots."""
    found = []
    for base, parts in _statements(data):
        for part in parts:
            name, _, alias = map(str.strip, part.decode("utf-8", "replace").partition(" as "))
            if base is None:
                found.append((name, "", alias or name.partition(".")[0]))
            elif name.isidentifier() or name == "*":
                found.append((base, name, alias or name))
    return found


def _statements(data: bytes) -> Iterator[tuple[str | None, list[bytes]]]:
    """Each import statement: its ``from`` module, if any, and its names as written."""
    for match in _matches(data, _IMPORT):
        base, names, plain = match.groups()
        if plain:
            yield None, plain.split(b",")
        else:
            parts = names.strip(b"()").replace(b"\\", b"").split(b",")
            yield base.decode("utf-8", "replace"), parts
    for match in _matches(data, _CALLED) if b"import_module(" in data else ():
        alias, name = match.groups()
        yield None, [name if alias is None else name + b" as " + alias]


def _matches(data: bytes, written: bytes) -> Iterator[re.Match[bytes]]:
    pattern = re.compile(written)
    place = data.find(b"import")
    while place >= 0:
        match = pattern.match(data, data.rfind(b"\n", 0, place) + 1)
        if match is not None:
            yield match
        place = data.find(b"import", max(place + 6, match.end() if match is not None else 0))
