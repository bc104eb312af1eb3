"""Syntax that is newer than the running Python: read by libcst, blanked at equal length for `ast`.

What is blanked says nothing of workers and gradients: type aliases, type parameters, the star of
``except*``. A string whose fields this Python cannot read becomes a plain one. Exceptions without
parentheses become ``A | B``, and `as_newer` makes them a tuple in the tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from gradguard_lint.reading.text import SourceError, decode

_NEWER = {
    (3, 11): rb"\bexcept[ \t]*\*",
    (3, 12): rb"^[ \t]*type[ \t]+\w|^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+[ \t]*\["
    rb"|\b(?:[fF][rR]?|[rR][fF])[\"']",
    (3, 14): rb"\b(?:[tT][rR]?|[rR][tT])[\"']|\bexcept\b[^(:,\n]*(?:\\\r?\n[^(:,\n]*)*,",
}
"""Syntax that needs a newer Python, by the first version that reads it."""

_DEEPEST = 200
"""The deepest nesting of brackets to parse: libcst crashes the process on deeper nesting."""
_ENDLESS = re.compile(rb"(?:(?:not|lambda[^:\n]*:|[-+~(\[{])\s*){200}|(?:\belif\b.*\s+){1000}")
_LONGEST = 20_000
"""The longest line to parse."""


def as_older(data: bytes) -> str | None:
    """`data` without the syntax that the running Python cannot read; None if that does not help."""
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


def as_newer(tree: ast.Module) -> None:
    """Turn exceptions without parentheses, in the tree of the result of `as_older`, into tuples."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.BinOp):
            several = ast.Tuple(_either(node.type), ast.Load())
            node.type = ast.copy_location(several, node.type)


def _either(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_either(node.left), node.right]
    return [node]


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
"""Replacements in a node's source: start, end, and the new text."""


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


_BARE = re.compile(r"except\b\s*\*?(?:[\w.\s\\]+,)+[\w.\s\\]*:")
"""Several names of exceptions without parentheses; only names are supported."""


def _handler(source: str) -> Blank:
    bare = _BARE.match(source)
    if bare is not None and sys.version_info < (3, 14):
        ends = bare.group().rstrip(": \t\r\n\\")
        for comma in re.finditer(",", bare.group()):
            yield comma.start(), comma.end(), "|" if comma.end() < len(ends) else " "


def _star(source: str) -> Blank:
    yield from _handler(source)
    if sys.version_info < (3, 11):
        place = source.index("*")
        yield place, place + 1, " "


_BLANKS = {
    "TypeAlias": _statement,
    "TypeParameters": _parameters,
    "FormattedString": _string,
    "TemplatedString": _string,
    "ExceptHandler": _handler,
    "ExceptStarHandler": _star,
}
