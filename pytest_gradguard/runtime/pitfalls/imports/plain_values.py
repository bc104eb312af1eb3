"""Plain values: numbers, strings, and dicts, lists, tuples and sets of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.kernel.travelling import PLAIN

MISSING = object()
"""Stands for an absent value."""

_CONTAINERS = (dict, list, tuple, set, frozenset)
_SEARCHED = 1_000
_SHOWN = 60


def is_plain(value: Any) -> bool:
    """Whether `value` is plain at all levels, and small enough to check."""
    left = _SEARCHED
    stack = [value]
    while stack and left:
        left -= 1
        item = stack.pop()
        kind = type(item)
        if kind in _CONTAINERS:
            if len(item) > left:
                return False
            stack += (*item.keys(), *item.values()) if kind is dict else item
        elif kind not in PLAIN and item is not MISSING:
            return False
    return not stack


def digest(value: Any) -> int:
    """A digest that is equal for equal plain values, in every process."""
    return zlib.crc32("".join(_parts(value)).encode("utf-8", "surrogatepass"))


def _parts(value: Any) -> Iterator[str]:
    kind = type(value)
    if kind is dict:
        pairs = ("".join((*_parts(key), ":", *_parts(held))) for key, held in value.items())
        yield f"{{{','.join(sorted(pairs))}}}"
    elif kind in (set, frozenset):
        yield f"<{','.join(sorted(''.join(_parts(item)) for item in value))}>"
    elif kind in (list, tuple):
        yield f"{kind.__name__}("
        for item in value:
            yield from _parts(item)
            yield ","
        yield ")"
    else:
        yield "missing" if value is MISSING else repr(value)


def differs(value: Any, before: Any) -> bool:
    """Whether `value` differs from `before` by more than growth: caches and histories keep their
    old entries."""
    kind = type(value)
    if kind is type(before):
        if kind is dict:
            return any(key not in value or differs(value[key], before[key]) for key in before)
        if kind is list:
            return bool(value[: len(before)] != before)
        if kind is set:
            return not before <= value
    return bool(value != before)


def at_keys(value: Any, keys: tuple[Any, ...]) -> Any:
    """The value under nested `keys` of plain dicts and lists; otherwise `MISSING`."""
    for key in keys:
        try:
            value = value[key] if type(value) in (dict, list, tuple) else MISSING
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def shown(value: Any) -> str:
    """`value` as messages show it."""
    if value is MISSING:
        return "not set"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
