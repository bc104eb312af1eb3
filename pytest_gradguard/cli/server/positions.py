"""Places of what was checked, in the text that the editor shows now."""

from __future__ import annotations

from difflib import SequenceMatcher
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
        self._now = checked if now is None else lines_of(now)
        self._codec = codec
        self.is_current = now is not None and self._now == checked
        self._moved = range(len(checked)) if self.is_current else _moved(checked, self._now)

    def line(self, number: int) -> int:
        """Where the checked line is now, counted from 0."""
        return self._moved[number - 1] if number <= len(self._moved) else number - 1

    def range_of(self, place: Location | Edit) -> types.Range:
        """Where `place` is now, with columns as the client counts them."""
        end_line, end_column = place.end_line or place.line, place.end_column or 1
        start = types.Position(self.line(place.line), place.column - 1)
        end = types.Position(self.line(end_line), end_column - 1)
        where = types.Range(start, max(start, end))
        return self._codec.range_to_client_units(self._now, where)


def _moved(before: Sequence[str], now: Sequence[str]) -> list[int]:
    """Where each line is now; one that has changed, where what is there instead is."""
    found: list[int] = []
    for _, start, stop, first, last in SequenceMatcher(None, before, now).get_opcodes():
        found += (min(first + k, max(first, last - 1)) for k in range(stop - start))
    return [min(index, len(now) - 1) for index in found]


def whole_line(index: int) -> types.Range:
    """A line, counted from 0, with its end."""
    return types.Range(types.Position(index, 0), types.Position(index + 1, 0))
