"""Which of the repairs that rules state are written: those that are seen to do what they should.

Repairs are made in memory and the program is read again: the findings have to be gone, no other may
have come, and Python has to make code of each file. Those that have nothing to do with each other
are made at once; where that does not come out, each half of them by itself.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradguard_lint.fixes.changes import Change, Fix, Unwritable
from gradguard_lint.fixes.edits import (
    RawEdit,
    between,
    decoded,
    edited_files,
    lines_of,
    moved,
    overlap,
    too_large,
)
from gradguard_lint.project.files import absolute
from gradguard_lint.reading.source import Module, tree_of
from gradguard_lint.reading.text import compile_flags

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.fixes.rewrite import Source

Raw = dict[str, Any]
Again = Callable[[dict[str, bytes]], list[Raw]]
"""The findings of the program where files hold something else."""


class Repair:
    """A repair that was written.

    Attributes:
        raw: the finding.
        fix: what its rule states.
        edits: the edits that make it.
        about: the function that it is in, and the place where that is handed out.
    """

    def __init__(self, raw: Raw, fix: Fix, edits: list[RawEdit]) -> None:
        self.raw = raw
        self.fix = fix
        self.edits = edits
        self.about: set[tuple[str, Any]] = {(raw["path"], raw["function"])}
        place = raw["details"].get("handed_out_at")
        if place is not None:
            self.about.add((place["path"], place["line"]))

    def is_apart(self, other: Repair) -> bool:
        """Whether the two repairs are independent."""
        return self.about.isdisjoint(other.about) and not overlap(self.edits, other.edits)


def settle(stated: Sequence[tuple[Raw, Fix]], found: Sequence[Raw], again: Again) -> None:
    """Write the edits of each repair that is verified into its finding."""
    sources: dict[Module, Source] = {}
    waiting = []
    for raw, fix in stated:
        try:
            edits = _edits(fix, sources)
        except Exception:  # whatever fails in a repair, the finding stays
            continue
        if edits:
            waiting.append(Repair(raw, fix, edits))
    data = {absolute(module.path): module.data for module in sources}
    while waiting:
        together: list[Repair] = []
        for repair in waiting:
            if all(map(repair.is_apart, together)):
                together.append(repair)
        for repair in _proved(together, data, found, again):
            repair.raw["edits"] = {
                "applicability": repair.fix.applicability,
                "message": repair.fix.message,
                "edits": repair.edits,
                "alone": list(repair.fix.alone),
                "last": repair.fix.last,
            }
        waiting = [repair for repair in waiting if repair not in together]


def _proved(
    together: list[Repair], data: dict[str, bytes], found: Sequence[Raw], again: Again
) -> list[Repair]:
    """The verified ones of independent repairs."""
    try:
        edits, contents = edited_files([repair.edits for repair in together], data.__getitem__)
        check_code(contents)
        after = again(contents)
        if all(repairs(repair.raw, found, edits, after) for repair in together):
            return together
    except Exception:
        pass  # whatever fails in a repair, the finding stays
    if len(together) == 1:
        return []
    half = len(together) // 2
    return [
        *_proved(together[:half], data, found, again),
        *_proved(together[half:], data, found, again),
    ]


def check_code(contents: Mapping[str, bytes]) -> None:
    """Make sure that Python makes code of what these files hold: it does not of a tree in which an
    argument is given twice, for one.

    Raises:
        SyntaxError, SourceError, ValueError, RecursionError: it does not.
    """
    for path, data in contents.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree_of(data, path), path, "exec", compile_flags(path), dont_inherit=True)


def repairs(
    raw: Raw, before: Sequence[Raw], edits: Sequence[RawEdit], after: Sequence[Raw]
) -> bool:
    """Whether `edits` remove the finding `raw`, and add none."""
    then = places(before, edits)
    now = places(after)
    mine = _place(raw, edits)
    return now[mine] < then[mine] and now <= then


def places(found: Sequence[Raw], edits: Sequence[RawEdit] = ()) -> Counter[tuple[str, str, int]]:
    """The number of findings of each code on each line, after `edits`."""
    return Counter(_place(raw, edits) for raw in found)


def _place(raw: Raw, edits: Sequence[RawEdit]) -> tuple[str, str, int]:
    path = raw["path"]
    return raw["code"], path, moved(edits, path, raw["line"], raw["column"])


def _edits(fix: Fix, sources: dict[Module, Source]) -> list[RawEdit]:
    """The edits of a repair."""
    from gradguard_lint.fixes.rewrite import Source  # which imports libcst

    by_module: dict[Module, list[Change]] = {}
    for change in fix.changes:
        by_module.setdefault(change.module, []).append(change)
    edits: list[RawEdit] = []
    for module, changes in by_module.items():
        if module not in sources:
            why = too_large(module.data)
            if why:
                raise Unwritable(why)
            sources[module] = Source(module, decoded(module.data)[0])
        source = sources[module]
        own = between(absolute(module.path), source.read, source.changed(changes))
        if source.read != source.text:
            _check_lines(source.text, source.read, own)
        for edit in own if source.newline else ():
            edit["content"] = edit["content"].replace("\n", source.newline)
        edits += own
    return edits


def _check_lines(text: str, read: str, edits: Sequence[RawEdit]) -> None:
    """Check that the edits touch only lines that libcst reproduces."""
    lines, others = lines_of(text), lines_of(read)
    touched = {number - 1 for edit in edits for number in range(edit["line"], edit["end_line"] + 1)}
    if len(lines) != len(others) or any(lines[number] != others[number] for number in touched):
        raise Unwritable("libcst does not give these lines back as they are")
