"""Syntax that is newer than the running Python: read by libcst, blanked at equal length for `ast`.

What is blanked says nothing of workers and gradients: type aliases, type parameters, the star of
``except*``. A string whose fields this Python cannot read becomes a plain one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from gradguard_lint.reading.text import SourceError, decode

_NEWER = {
    (3, 11): rb"\bexcept[ \t]*\*",
    (3, 12): rb"^[ \t]*type[ \t]+\w|^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+[ \t]*\["
    rb"|\b(?:[fF][rR]?|[rR][fF])[\"']",
    (3, 14): rb"\b(?:[tT][rR]?|[rR][tT])[\"']",
}
"""What a file has that needs a newer Python, by the first that reads it."""

_DEEPEST = 200
"""As deep as brackets may be nested: libcst ends the process where they are nested too deeply."""
_ENDLESS = re.compile(rb"(?:(?:not|lambda[^:\n]*:|[-+~(\[{])\s*){200}|(?:\belif\b.*\s+){1000}")
_LONGEST = 20_000
"""As long as a line may be."""


def as_older(data: bytes) -> str | None:
    """`data` without what the running Python cannot read; None where that is not why it cannot."""
    marks = [mark for version, mark in _NEWER.items() if sys.version_info < version]
    if not marks or not re.search(b"|".join(marks), data, re.MULTILINE) or _is_too_deep(data):
        return None
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider

    try:
        text = decode(data)
        tree = libcst.parse_module(text)
        if tree.code != text:
            return None
        wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
        places = wrapper.resolve(PositionProvider)
    except (libcst.ParserSyntaxError, SyntaxError, SourceError, RecursionError):
        return None
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node, place in places.items():
        start = starts[place.start.line - 1] + place.start.column
        end = starts[place.end.line - 1] + place.end.column
        blank = _BLANKS.get(type(node).__name__)
        if blank is not None and text[start:end].strip():
            for first, last, content in blank(text[start:end]):
                text = text[: start + first] + content + text[start + last :]
    return text


def _is_too_deep(data: bytes) -> bool:
    depth = deepest = 0
    for bracket in re.findall(rb"[()\[\]{}]", data):
        depth += 1 if bracket in b"([{" else -1
        deepest = max(deepest, depth)
    return (
        deepest > _DEEPEST
        or _ENDLESS.search(data) is not None
        or max(map(len, data.splitlines()), default=0) > _LONGEST
    )


Blank = Iterator[tuple[int, int, str]]
"""Pieces of a node's source, from and to, and what stands there instead."""


def _statement(source: str) -> Blank:
    yield 0, len(source), "pass" + re.sub(r"[^\r\n]", " ", source[4:])


def _parameters(source: str) -> Blank:
    blank = re.sub(r"[^\r\n]", " ", source)
    yield 0, len(source), re.sub(r" (?=\r|\n)", r"\\", blank)


def _string(source: str) -> Blank:
    try:
        compile(source, "<string>", "eval", 0x400)
    except SyntaxError:
        inner = re.sub(r"[^\r\n]", " ", source[2:-2])
        several = "\n" in inner or "\r" in inner
        yield 0, len(source), f"(''{inner[1:]} )" if several else f"'{' ' + inner + ' '}'"


def _star(source: str) -> Blank:
    if sys.version_info < (3, 11):
        place = source.index("*")
        yield place, place + 1, " "


_BLANKS = {
    "TypeAlias": _statement,
    "TypeParameters": _parameters,
    "FormattedString": _string,
    "TemplatedString": _string,
    "ExceptStarHandler": _star,
}
