"""Edits of text: computing them from two texts, applying them, and moving places by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from gradguard_lint.reading.text import decode

RawEdit = dict[str, Any]
"""An edit as plain data, with the fields of `pytest_gradguard.findings.Edit`."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_WORD = re.compile(r"\r\n|[ \t]+|\w+|.|\n", re.DOTALL)
_END = re.compile(r"\r\n|\r|\n")


LARGEST = 512 * 1024
"""The size in bytes of the largest file to repair; libcst parses some 100 KB a second."""

LONGEST = 20_000
"""The length in bytes of the longest line in a file to repair."""


def lines_of(text: str) -> list[str]:
    """The lines of `text` with their line ends, split as Python does; the last has none."""
    lines = _LINE.findall(text)
    if len(lines) > 1 and not lines[-1] and not (lines[-2].endswith(("\r", "\n"))):
        lines.pop()
    return lines


def between(path: str, old: str, new: str) -> list[RawEdit]:
    """The smallest edits from `old` to `new`: words and spaces that differ."""
    before, after = lines_of(old), lines_of(new)
    found = []
    for tag, start, stop, first, last in SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            continue
        olds = _WORD.findall("".join(before[start:stop]))
        news = _WORD.findall("".join(after[first:last]))
        for kind, a, b, c, d in SequenceMatcher(None, olds, news, False).get_opcodes():
            if kind == "equal":
                continue
            line, column = _after("".join(olds[:a]), start + 1, 1)
            end_line, end_column = _after("".join(olds[a:b]), line, column)
            place = (line, column, end_line, end_column)
            found.append(edit_at(path, place, "".join(news[c:d])))
    return found


def edit_at(path: str, place: tuple[int, int, int, int], content: str) -> RawEdit:
    """The edit that replaces `place` (first line and column, last line and column) by `content`."""
    names = ("line", "column", "end_line", "end_column")
    return {"path": path, **dict(zip(names, place, strict=True)), "content": content}


def _after(text: str, line: int, column: int) -> tuple[int, int]:
    """The position after `text` that begins at the given position."""
    ends = list(_END.finditer(text))
    if not ends:
        return line, column + len(text)
    return line + len(ends), len(text) - ends[-1].end() + 1


def edited(text: str, edits: Iterable[RawEdit]) -> str:
    """`text` with `edits` applied, which do not overlap."""
    starts = [0]
    for line in lines_of(text):
        starts.append(starts[-1] + len(line))
    for edit in sorted(edits, key=_start, reverse=True):
        start = starts[edit["line"] - 1] + edit["column"] - 1
        end = starts[edit["end_line"] - 1] + edit["end_column"] - 1
        text = text[:start] + edit["content"] + text[end:]
    return text


def edited_bytes(data: bytes, edits: Iterable[RawEdit]) -> bytes:
    """The file that holds `data`, with `edits` made, in its own encoding.

    Raises:
        UnicodeEncodeError: the encoding does not have a character of them.
    """
    text, encoding, mark = decoded(data)
    return mark + edited(text, edits).encode(encoding)


def decoded(data: bytes) -> tuple[str, str, bytes]:
    """The text of a file, its encoding, and its byte order mark."""
    from gradguard_lint.reading.text import encoding_of

    encoding = encoding_of(data)
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    return decode(data), encoding.removesuffix("-sig"), mark


def overlap(first: Sequence[RawEdit], second: Sequence[RawEdit]) -> bool:
    """Whether the edits of two repairs conflict."""
    return any(
        one["path"] == other["path"] and one != other and _touch(one, other)
        for one in first
        for other in second
    )


def _touch(one: RawEdit, other: RawEdit) -> bool:
    return not (_end(one) < _start(other) or _end(other) < _start(one))


def _start(edit: RawEdit) -> tuple[int, int]:
    return edit["line"], edit["column"]


def _end(edit: RawEdit) -> tuple[int, int]:
    return edit["end_line"], edit["end_column"]


def moved(edits: Iterable[RawEdit], path: str, line: int, column: int) -> int:
    """The line of the place after `edits`."""
    shift = 0
    for edit in edits:
        if edit["path"] == path and _end(edit) <= (line, column):
            added = len(_END.findall(edit["content"]))
            shift += added - (edit["end_line"] - edit["line"])
    return line + shift


def edited_files(
    repairs: Iterable[Sequence[RawEdit]], held: Callable[[str], bytes]
) -> tuple[list[RawEdit], dict[str, bytes]]:
    """The edits of `repairs`, each once, and what the files that they change hold then.

    `held` tells what a file holds now.

    Raises:
        UnicodeEncodeError: the encoding of a file does not have a character of them.
    """
    edits = list(_distinct(edit for repair in repairs for edit in repair))
    return edits, {
        path: edited_bytes(held(path), [edit for edit in edits if edit["path"] == path])
        for path in sorted({edit["path"] for edit in edits})
    }


def _distinct(edits: Iterable[RawEdit]) -> Iterator[RawEdit]:
    """`edits` without duplicates: two repairs may need the same import."""
    seen: list[RawEdit] = []
    for edit in edits:
        if edit not in seen:
            seen.append(edit)
            yield edit


def too_large(data: bytes) -> str:
    """Why a file is too large to repair; "" if it is not."""
    if len(data) > LARGEST:
        return f"it is larger than {LARGEST // 1024} KiB"
    if len(data) > LONGEST and max(map(len, data.splitlines())) > LONGEST:
        return f"it has a line of more than {LONGEST} bytes"
    return ""
