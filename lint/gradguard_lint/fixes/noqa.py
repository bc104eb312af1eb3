"""``--add-noqa``: comments that silence findings, where Python allows a comment.

A comment ends a line, so the lines that `tokenize` sees are enough here: no node changes.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Mapping

from gradguard_lint.fixes.edits import RawEdit, decoded, edit_at, lines_of
from gradguard_lint.reading.newer import as_older
from gradguard_lint.reading.source import tree_of

_LISTED = re.compile(
    r"#\s*(?i:noqa:\s*(?P<noqa>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))"
    r"|#\s*gradguard:\s*ignore\s*\[(?P<ignore>[^\]#]*)(?=\])"
)
"""A comment with a list of codes, up to the end of the list."""


def silencing(
    path: str, data: bytes, wanted: Mapping[int, Iterable[str]], reason: str
) -> list[RawEdit]:
    """The edits that silence codes on lines of `data`, each with the `reason`, if not empty."""
    text = decoded(data)[0]
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    comments, closed = _comments_and_closed(data, text)
    tree = tree_of(data, path)
    codes: dict[int, set[str]] = {}
    for line, names in wanted.items():
        place = next((free for free in _places(tree, line) if free not in closed), None)
        if place is not None:
            codes.setdefault(place, set()).update(names)
    edits = []
    for line, names in sorted(codes.items()):
        end = len(lines[line - 1])
        listed = None
        if line in comments:
            listed = next(_LISTED.finditer(lines[line - 1], comments[line]), None)
        if listed is not None:
            written = (listed["noqa"] or listed["ignore"] or "").strip()
            new = sorted(names - set(re.findall(r"[A-Z]+[0-9]+", written.upper())))
            start = end = listed.end()
            rest = lines[line - 1][end:].rstrip()
            separator = ", " if new and written and not written.endswith(",") else ""
            content = separator + ", ".join(new)
            if reason.strip():  # after the existing text of the line
                content += f"{rest}{' ' if rest in ('', ']') else '; '}{reason.strip()}"
                end += len(rest)
        else:
            start = len(lines[line - 1].rstrip())
            said = f" {reason.strip()}" if reason.strip() else ""
            content = f"  # noqa: {', '.join(sorted(names))}{said}"
        edits.append(edit_at(path, (line, start + 1, line, end + 1), content))
    return edits


def comments_in(data: bytes, text: str) -> dict[int, int]:
    """The column of the comment on each line, in characters from 0."""
    return _comments_and_closed(data, text)[0]


def _comments_and_closed(data: bytes, text: str) -> tuple[dict[int, int], set[int]]:
    try:
        return _tokens(text)
    except (tokenize.TokenError, SyntaxError):  # strings that only newer Pythons can read
        return _tokens(as_older(data) or text)


def _tokens(text: str) -> tuple[dict[int, int], set[int]]:
    """The column of the comment on each line, and the lines that cannot end in one."""
    comments: dict[int, int] = {}
    closed: set[int] = set()
    end = (1, 0)
    for token in tokenize.generate_tokens(iter(lines_of(text)).__next__):
        if token.start[0] > end[0] and token.type not in _LINE_ENDS:
            closed.update(range(end[0], token.start[0]))  # continued by a backslash
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.start[1]
        closed.update(range(token.start[0], token.end[0]) if token.type not in _LINE_ENDS else ())
        end = (token.end[0] + (token.type in _LINE_ENDS), 0)
    return comments, closed


_LINE_ENDS = frozenset(
    {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def _places(tree: ast.AST, line: int) -> list[int]:
    """The lines where a comment silences findings on `line`, the best first."""
    places = [line]
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            simple = not hasattr(node, "body")
            places[1:] = [node.lineno, *([node.end_lineno or node.lineno] if simple else ())]
    return places
