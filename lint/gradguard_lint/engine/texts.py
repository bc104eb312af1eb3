"""Composed strings, with ``{}`` for unknown parts."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import known_items
from gradguard_lint.domain.unknowns import OWN, is_process_specific
from gradguard_lint.domain.values import UNKNOWN, Choice, Const, Unknown, Value

GAP = "{}"
"""The placeholder for an unknown part."""

TEXTS = 4
"""The most alternatives of a composed string."""

_FIELD = re.compile(r"%(?:\((\w+)\))?([-+ #0-9.]*)([a-zA-Z%])")


def compose(parts: Iterable[str | Value]) -> Value:
    """The concatenation of `parts`, with all combinations of their alternatives."""
    ways: list[tuple[str, bool, Conditions]] = [("", True, frozenset())]
    own: tuple[str, ...] = ()
    for part in parts:
        if isinstance(part, str):
            ways = [(text + part, whole, when) for text, whole, when in ways]
            continue
        if is_process_specific(part):
            own = (OWN,)
        more = [(*_shown(choice), choice.when) for choice in part.choices]
        if len(more) * len(ways) > TEXTS:
            more = [(GAP, False, frozenset.intersection(*(when for _, _, when in more)))]
        ways = [
            (text + shown, whole and known, when | other)
            for text, whole, when in ways
            for shown, known, other in more
        ]
    return Value(
        tuple(
            Choice(Const(text, "str") if whole else Unknown(("text", text, *own)), when)
            for text, whole, when in ways
        )
    )


def may_be(key: Key, value: Hashable) -> bool:
    """Whether a value with this key may equal `value`; keys are partly known texts or tensor
    devices."""
    if not isinstance(key, tuple) or key[0] not in ("text", "device-of"):
        return True
    if key[0] == "device-of":
        return False  # a device isn't a string, even if it has that name
    pattern = ".*".join(map(re.escape, str(key[1]).split(GAP)))
    return isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL) is not None


def _shown(choice: Choice) -> tuple[str, bool]:
    """The text of a part, and whether it is known."""
    atom = choice.atom
    if isinstance(atom, Const) and isinstance(atom.value, (str, int, float, bool, type(None))):
        return str(atom.value), True
    if isinstance(atom, Unknown) and isinstance(atom.key, tuple) and atom.key[0] == "text":
        return str(atom.key[1]), False
    return GAP, False


def str_format(text: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
    """``text.format(...)``."""
    from string import Formatter

    parts: list[str | Value] = []
    count = 0
    try:
        fields = list(Formatter().parse(text))
    except ValueError:
        return UNKNOWN
    for before, name, spec, conversion in fields:
        parts.append(before)
        if name is None:
            continue
        value: Value | None = None
        if not name:
            name, count = str(count), count + 1
        if name.isdigit():
            value = positional[int(name)] if int(name) < len(positional) else None
        else:
            value = keywords.get(name)
        parts.append(value if value is not None and not spec and not conversion else UNKNOWN)
    return compose(parts)


def percent_format(text: str, given: Value) -> Value:
    """``text % given``."""
    items = known_items(given)
    several = items is not None and given.only is not None
    values = list(items) if several and items is not None else [given]
    parts: list[str | Value] = []
    end = 0
    for match in _FIELD.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        name, flags, kind = match.groups()
        if kind == "%":
            parts.append("%")
        elif name or flags or not values or kind not in "sdi":
            parts.append(UNKNOWN)
            values = values[1:]
        else:
            parts.append(values.pop(0))
    parts.append(text[end:])
    return compose(parts)


def str_join(text: str, given: Value) -> Value:
    """``text.join(given)``."""
    items = known_items(given)
    if items is None:
        return UNKNOWN
    parts: list[str | Value] = []
    for index, item in enumerate(items):
        parts += [text, item] if index else [item]
    return compose(parts) if parts else compose([""])
