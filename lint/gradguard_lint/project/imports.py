"""What a file imports, told from its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

_IMPORT = (
    rb"(?:\xef\xbb\xbf)?[ \t\f]*"
    rb"(?:from[ \t\f]+(\.*[\w.]*)[ \t\f]+import[ \t\f]*(\([^)]*\)|[^\n;#]+)"
    rb"|import[ \t\f]+([^\n;#]+))"
)
"""An import, from the start of its line."""

_CONTINUED = re.compile(rb"\\\r?\n")


def import_lines(data: bytes) -> bytes:
    """The lines of `data` that mention an import, each with what stands in its brackets."""
    parts = data.split(b"import")
    if len(parts) == 1:
        return b""
    lines = []
    before = parts[0]
    for after in parts[1:]:
        start = before.rfind(b"\n") + 1
        if start > 2 and before[start - 3 : start].rstrip().endswith(b"\\"):
            start = before.rfind(b"\n", 0, start - 1) + 1
        bracket = after[:2].strip() == b"("
        end = after.find(b")") + 1 or -1 if bracket else after.find(b"\n")
        while end >= 0 and after[:end].rstrip(b"\r").endswith(b"\\"):
            end = after.find(b"\n", end + 1)
        lines.append(before[start:])
        lines.append(b"import" + (after if end < 0 else after[:end]) + b"\n")
        before = after
    found = b"".join(lines)
    return _CONTINUED.sub(b" ", found) if b"\\" in found else found


def absolute_name(name: str, package: str) -> str:
    """The dotted `name` without the dots that lead it, which count from `package` upwards."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name[level:]}".strip(".")


def imports(data: bytes) -> list[str]:
    """The dotted names that the imports of `data` mention, relative ones with their dots."""
    found: list[str] = []
    for base, parts in _statements(data):
        names = [part.split(b" as ")[0].strip().decode("utf-8", "replace") for part in parts]
        if base is None:
            found += names
            continue
        found.append(base)
        start = base if base.endswith(".") else base + "."
        found += [start + name for name in names if name.isidentifier()]
    return found


def imported_names(data: bytes) -> list[tuple[str, str, str]]:
    """What the imports of `data` give: the module (relative ones with their dots), the name there
    ("" for the module itself, "*" for all), and the name here."""
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
    """Each import: the module that it is from, if it says so, and what it imports, as written."""
    for match in _matches(data):
        base, names, plain = match.groups()
        if plain:
            yield None, plain.split(b",")
        else:
            parts = names.strip(b"()").replace(b"\\", b"").split(b",")
            yield base.decode("utf-8", "replace"), parts


def _matches(data: bytes) -> Iterator[re.Match[bytes]]:
    pattern = re.compile(_IMPORT)
    place = data.find(b"import")
    while place >= 0:
        match = pattern.match(data, data.rfind(b"\n", 0, place) + 1)
        if match is not None:
            yield match
        place = data.find(b"import", max(place + 6, match.end() if match is not None else 0))
