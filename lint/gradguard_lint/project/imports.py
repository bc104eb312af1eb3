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
    for base, names in _statements(data):
        if base is not None:
            found.append(base)
            names = [name for name in names if name[0] != "*"]
        found.extend(_dotted(base, name) for name, _ in names)
    return found


def imported_names(data: bytes) -> list[tuple[str, str, str]]:
    """What the imports of `data` give: the module (relative ones with their dots), the name there
    ("" for the module itself, "*" for all), and the name here."""
    found = []
    for base, names in _statements(data):
        if base is not None:
            found += [(base, name, local or name) for name, local in names]
        else:
            found += [(name, "", local or name.partition(".")[0]) for name, local in names]
    return found


def _dotted(base: str | None, name: str) -> str:
    if base is None:
        return name
    return base + name if base.endswith(".") else f"{base}.{name}"


def _statements(data: bytes) -> Iterator[tuple[str | None, list[tuple[str, str]]]]:
    """Each import: the module that it is from, if it says so, and the names, each with the one
    that it gets, if it says so."""
    for match in _matches(data):
        base, names, plain = match.groups()
        text = plain or names.strip(b"()").replace(b"\\", b"")
        pairs = []
        for part in text.decode("utf-8", "replace").split(","):
            name, _, local = part.partition(" as ")
            name = name.strip()
            if plain or name.isidentifier() or name == "*":
                pairs.append((name, local.strip()))
        yield None if plain else base.decode("utf-8", "replace"), pairs


def _matches(data: bytes) -> Iterator[re.Match[bytes]]:
    pattern = re.compile(_IMPORT)
    place = data.find(b"import")
    while place >= 0:
        match = pattern.match(data, data.rfind(b"\n", 0, place) + 1)
        if match is not None:
            yield match
        place = data.find(b"import", max(place + 6, match.end() if match is not None else 0))
