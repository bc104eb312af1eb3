"""Places of what was checked, in the text that the editor shows now."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.workspace import PositionCodec

from gradguard_lint.fixes.edits import lines_of
from pytest_gradguard.findings import Edit, Location

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["View", "whole_line"]


class View:
    """One document, as it was checked and as it is now.

    Attributes:
        is_current: whether it is as it was checked.
    """

    def __init__(self, checked: Sequence[str], now: str | None, codec: PositionCodec) -> None:
        """Compare the `checked` lines with the text `now`; None, if it cannot be read.

        `codec` counts columns as the client does.
        """
        self._checked = checked
        self._now = checked if now is None else lines_of(now)
        self._codec = codec
        self.is_current = now is not None and self._now == checked
        lines = zip(self._checked, self._now, strict=False)
        self._before = sum(1 for _ in takewhile(_are_equal, lines))
        ends = zip(reversed(self._checked), reversed(self._now), strict=False)
        shorter = min(len(self._checked), len(self._now))
        after = sum(1 for _ in takewhile(_are_equal, ends))
        self._after = min(after, shorter - self._before)

    def line(self, number: int) -> int:
        """Where the checked line is now, from 0: what follows a change has moved with it."""
        index = number - 1
        if index < self._before:
            return index
        if index >= len(self._checked) - self._after:
            return index + len(self._now) - len(self._checked)
        return max(min(index, len(self._now) - self._after - 1), 0)

    def range_of(self, place: Location | Edit) -> types.Range:
        """Where `place` is now, with columns as the client counts them."""
        end_line, end_column = place.end_line or place.line, place.end_column or 1
        start = types.Position(self.line(place.line), place.column - 1)
        end = types.Position(self.line(end_line), end_column - 1)
        where = types.Range(start, max(start, end))
        return self._codec.range_to_client_units(self._now, where)


def _are_equal(lines: tuple[str, str]) -> bool:
    return lines[0] == lines[1]


def whole_line(index: int) -> types.Range:
    """A line, counted from 0, with its end."""
    return types.Range(types.Position(index, 0), types.Position(index + 1, 0))
