"""Operations on names."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


def outermost_first(name: str) -> list[str]:
    """The packages of the dotted `name` and itself, in import order."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def absolute_name(name: str, package: str) -> str:
    """The absolute name of `name`, with leading dots resolved from `package`."""
    if not name.startswith("."):
        return name
    level = len(name) - len(name.lstrip("."))
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name[level:]}".strip(".")
