"""What can be left out of a program's text, by its syntax tree; its comments and lines stay."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

FILE = re.compile(r"^(# file: \S+\n)", re.MULTILINE)
"""What parts the files of a program."""


def announced(text: str) -> Counter[str]:
    """The comments that say what is reported and revealed."""
    return Counter(re.findall(r"  # (?:.*GG\d|info|reveals: ).*", text))


def unbound(text: str) -> set[str]:
    """The names that a program reads and binds nowhere: builtins, and what its page imports."""
    read, bound = set[str](), set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
    return read - bound


def shorter(text: str) -> Iterator[str]:
    """The texts of a program without one of its parts."""
    parts = FILE.split(text)
    for number, part in enumerate(parts):
        if part and part.isascii() and not FILE.match(part):
            for cut in cuts(part):
                changed = "".join([*parts[:number], cut.of(part), *parts[number + 1 :]])
                if announced(changed) == announced(text) and unbound(changed) <= unbound(text):
                    yield changed


class Cut(NamedTuple):
    """A part of a text, from `start` to `end`, and what stands there instead."""

    start: int
    end: int
    instead: str = ""

    def of(self, text: str) -> str:
        """The text after it."""
        return text[: self.start] + self.instead + text[self.end :]


def cuts(text: str) -> list[Cut]:
    """All that can be left out of a program, the most first."""
    lines = _Lines(text)
    found = {cut for node in ast.walk(ast.parse(text)) for cut in _of_node(node, lines)}
    return sorted(found, key=lambda cut: (cut.start - cut.end + len(cut.instead), cut))


class _Lines:
    """Where lines and columns are in a text of ASCII characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        """Where an expression begins and ends."""
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: Any) -> str:
        """The text of an expression."""
        start, end = self.span(node)
        return self.text[start:end]

    def whole(self, first: Any, last: Any) -> tuple[int, int]:
        """Where the lines of statements begin and end, with their decorators."""
        decorators = [it.lineno for it in getattr(first, "decorator_list", ())]
        return self.starts[min([first.lineno, *decorators]) - 1], self.starts[last.end_lineno]


def _of_node(node: Any, lines: _Lines) -> Iterator[Cut]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and not _is_chained(node, name):
            yield from _of_block(node, name, block, lines)
    for decorator in getattr(node, "decorator_list", ()):
        yield Cut(*lines.whole(decorator, decorator))
    if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
        start, end = lines.span(node)
        for simpler in _simpler(node):
            written = hasattr(simpler, "lineno")
            yield Cut(start, end, lines.of(simpler) if written else ast.unparse(simpler))


def _is_chained(node: Any, name: str) -> bool:
    """Whether that block is an ``elif``."""
    return isinstance(node, ast.If) and name == "orelse" and isinstance(node.orelse[0], ast.If)


def _of_block(node: Any, name: str, block: list[Any], lines: _Lines) -> Iterator[Cut]:
    if len(block) > 1 or isinstance(node, ast.Module):
        for statement in block:
            yield Cut(*lines.whole(statement, statement))
    elif name == "orelse":  # with its own line
        yield Cut(lines.whole(node.body[-1], node.body[-1])[1], lines.whole(node, node)[1])
    if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
        start, end = lines.whole(block[0], block[-1])
        inner = textwrap.dedent(lines.text[start:end])
        yield Cut(*lines.whole(node, node), textwrap.indent(inner, " " * node.col_offset))


def _simpler(node: Any) -> Iterator[ast.expr]:
    """Expressions that may stand in place of `node`."""
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        for place in range(len(node.keywords)):
            named = node.keywords[:place] + node.keywords[place + 1 :]
            yield ast.Call(node.func, node.args, named)
