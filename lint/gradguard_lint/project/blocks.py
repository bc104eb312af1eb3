"""The statements at the left margin of a module, and which of its names lead to something."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from gradguard_lint.project.imports import imported_names
from gradguard_lint.project.literals import words_of

_HEAD = rb"(?m)^[^\s#)\]}].*"
_IMPORTS = (b"from ", b"import ")
_DEFINED = rb"(?:@|(?:async[ \t]+)?def\b|class\b)"
_NAME = rb"(?m)^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)"
_IMPORTED = rb"(?m)^[ \t]*(?:from|import)\b.*(?:\([^)]*\))?"
_SET = rb"(?m)^[ \t]*([^\n=()]+?)[ \t]*=(?!=)"


def leading_to(
    data: bytes, found: Callable[[bytes], bool], names: Iterable[bytes] = ()
) -> set[bytes] | None:
    """The names that the module `data` gives others and that lead to what is `found`, or to one of
    its own `names`, over any of them; None where its import may.

    `data` has no comments and docstrings.
    """
    leading = set(names)
    waiting = []
    for block in _blocks(data):
        if block.startswith(b"if") and b"__main__" in block.partition(b"\n")[0]:
            continue
        own = _names(block)
        if not found(block):
            if not block.startswith(_IMPORTS):
                waiting.append((block, own, words_of(block)))
        elif own is None:
            return None
        else:
            leading |= own
    while True:
        more = [it for it in waiting if not leading.isdisjoint(it[2])]
        if not more:
            return leading
        waiting = [it for it in waiting if leading.isdisjoint(it[2])]
        for block, own, _ in more:
            if own is None and _calls(block, leading):
                return None
            leading |= _bound(block) if own is None else own


def _blocks(data: bytes) -> Iterator[bytes]:
    """The statements, each with what is indented below it, and a function with its decorators."""
    starts: list[int] = []
    decorated = False
    for head in re.finditer(_HEAD, data):
        if not decorated:
            starts.append(head.start())
        decorated = head.group().startswith(b"@")
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield data[start:end]


def _names(block: bytes) -> set[bytes] | None:
    """What a function, a class or an import is called; None where something is done."""
    if re.match(_DEFINED, block):
        return set(re.findall(_NAME, block)[:1])
    if block.startswith(_IMPORTS):
        return {os.fsencode(here) for _, _, here in imported_names(block)}
    return None


def _bound(block: bytes) -> set[bytes]:
    """The names that a statement gives values."""
    texts = (*re.findall(_SET, block), *re.findall(_IMPORTED, block), *re.findall(_NAME, block))
    return words_of(b" ".join(texts))


def _calls(block: bytes, names: set[bytes]) -> bool:
    """Whether a statement calls one of `names`, and does not only keep what that gives."""
    if re.match(rb"\w+[ \t]*(?::[^=\n]*)?=(?!=)", block):
        return False
    return any(it in names for it in re.findall(rb"(\w+)[ \t]*\(", block))
