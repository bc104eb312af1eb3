"""What the guard changed in a suite: the tests that ended otherwise, or left more behind."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suites import Known

DIED = "died"
"""The outcome of a test in which pytest itself ended."""


@dataclass(frozen=True)
class Result:
    """How one test ended in one run."""

    outcome: str
    why: str = ""
    left: tuple[tuple[str, int], ...] = ()

    @property
    def ended(self) -> str:
        return f"{self.outcome} ({self.why})" if self.why else self.outcome


@dataclass(frozen=True)
class Difference:
    """What is otherwise with the guard, and the reason where it is a known one."""

    kind: str
    test: str
    off: str
    on: str
    why: str = ""

    def explained(self, known: Iterable[Known]) -> Difference:
        for one in known:
            if one.kind == self.kind and fnmatch.fnmatchcase(self.test, one.tests):
                return Difference(self.kind, self.test, self.off, self.on, one.why)
        return self

    def __str__(self) -> str:
        return f"{self.test}: {self.kind}: {self.off} without the guard, {self.on} with it"

    def as_record(self) -> dict[str, str]:
        return asdict(self)


def read(file: Path) -> dict[str, Result]:
    """The results that the observer wrote; of a test that ran twice, the last."""
    results: dict[str, Result] = {}
    if not file.exists():
        return results
    for text in file.read_text(encoding="utf-8").splitlines():
        line: dict[str, Any] = json.loads(text)
        if line["event"] == "begin":
            results[line["test"]] = Result(DIED)
        else:
            left = tuple(sorted(line["left"].items()))
            results[line["test"]] = Result(line["outcome"], line["why"], left)
    return results


def forget_last(file: Path) -> None:
    """Let the test run again that was running when its run was stopped from outside."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and json.loads(lines[-1])["event"] == "begin":
        file.write_text("".join(lines[:-1]), encoding="utf-8")


def differences(
    off: dict[str, list[Result]], on: dict[str, list[Result]]
) -> tuple[list[Difference], list[Difference]]:
    """What the guard changed, and what only differs by chance; a test has a list of its runs.

    The first run is that of the whole suite, the others repeat the test. What the first run had
    with the guard alone is a difference where it comes back with the guard, be it once, and never
    comes without it. All else is a test that is unsteady by itself.
    """
    always: list[Difference] = []
    sometimes: list[Difference] = []
    for test in sorted(off.keys() | on.keys()):
        without, with_guard = off.get(test, []), on.get(test, [])
        for one, steady in _of_test(test, without, with_guard):
            (always if steady else sometimes).append(one)
    return always, sometimes


def _of_test(test: str, off: list[Result], on: list[Result]) -> Iterable[tuple[Difference, bool]]:
    if not off or not on:
        yield (
            Difference("outcome", test, *("ran" if ran else "did not run" for ran in (off, on))),
            True,
        )
        return
    if off[0].ended != on[0].ended:
        without = {one.ended for one in off}
        repeated = [one.ended not in without for one in on[1:]]
        steady = on[0].ended not in without and (any(repeated) or not repeated)
        yield Difference("outcome", test, off[0].ended, on[0].ended), steady
    for kind in dict(on[0].left):
        before, after = ([dict(one.left).get(kind, 0) for one in runs] for runs in (off, on))
        if after[0] > before[0]:
            most = max(before)
            steady = after[0] > most and max(after[1:] or after) > most
            yield Difference(kind, test, str(before[0]), str(after[0])), steady
