"""Names, written as text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


def outermost_first(name: str) -> list[str]:
    """The packages around what has the dotted `name`, and that itself, as an import runs them."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def absolute_name(name: str, package: str) -> str:
    """The dotted `name` without the dots that lead it, which count from `package` upwards."""
    if not name.startswith("."):
        return name
    level = len(name) - len(name.lstrip("."))
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name[level:]}".strip(".")
