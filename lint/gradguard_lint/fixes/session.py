"""The repairs of a whole run: which are made together, whether they hold, and writing the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gradguard_lint.fixes.changes import Unwritable
from gradguard_lint.fixes.edits import RawEdit, edited_files, overlap
from gradguard_lint.fixes.proof import check_code, places
from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.reading.text import NOTEBOOK, SourceError

Raw = dict[str, Any]

ROUNDS = 20
"""The most rounds of repairs and analysis: one repair may make another possible."""


class Session:
    """The repairs of one run, in memory until `write`.

    Attributes:
        before: what the changed files held.
        after: what they hold now.
        outcome: what the run finds now.
    """

    def __init__(
        self,
        outcome: Any,
        again: Callable[[Mapping[str, bytes]], Any],
        wanted: Callable[[Raw], bool],
    ) -> None:
        """Repair the findings of `outcome`.

        Args:
            outcome: the run.
            again: the run where files hold something else.
            wanted: which repairs to make.
        """
        self.outcome = outcome
        self.before: dict[str, bytes] = {}
        self.after: dict[str, bytes] = {}
        self._contents: Mapping[str, bytes] = outcome.contents
        self._again = again
        self._wanted = wanted
        self._refused: list[list[RawEdit]] = []
        for _ in range(ROUNDS):
            chosen = self._choice()
            if not chosen:
                break
            if not self._make(chosen):
                for raw in chosen:  # one of them spoils another
                    if not self._make([raw]):
                        self._refused.append(raw["edits"]["edits"])
                    else:
                        break  # the others have moved

    def _choice(self) -> list[Raw]:
        """Repairs that can be made together."""
        chosen: list[Raw] = []
        stated = [raw for raw in self.outcome.findings if raw["edits"] is not None]
        for raw in sorted(stated, key=lambda raw: bool(raw["edits"]["last"])):
            repair = raw["edits"]
            if repair["edits"] in self._refused or not self._wanted(raw):
                continue
            edits = repair["edits"]
            if not all(edit["path"] in self._contents for edit in edits):
                continue
            if not any(_in_the_way(repair, other["edits"]) for other in chosen):
                chosen.append(raw)
        return chosen

    def _make(self, chosen: Sequence[Raw]) -> bool:
        """Make repairs; whether they hold when all files are analysed again."""
        edits, contents = edited_files([raw["edits"]["edits"] for raw in chosen], self._now)
        changed = {**self.after, **contents}
        try:
            check_code(contents)
        except (SyntaxError, SourceError, ValueError, RecursionError):
            return False
        outcome = self._again(changed)
        then, now = places(self.outcome.findings, edits), places(outcome.findings)
        new_errors = {(e.path, e.message) for e in outcome.errors} - {
            (e.path, e.message) for e in self.outcome.errors
        }
        if new_errors or not now <= then:
            return False
        for path in changed.keys() - self.before.keys():
            self.before[path] = self._contents[path]
        self.outcome, self.after = outcome, changed
        return True

    def _now(self, path: str) -> bytes:
        return self.after.get(path, self._contents[path])


def _in_the_way(repair: Raw, other: Raw) -> bool:
    """Whether `other` is made without `repair`, which may be impossible or needless after it."""
    waits = repair["last"] and not other["last"]
    return (waits and not set(repair["alone"]).isdisjoint(other["alone"])) or overlap(
        repair["edits"], other["edits"]
    )


class NotWritten(Exception):
    """No file was written, because of one: its path, and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def write(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Write all files completely, or none.

    Raises:
        NotWritten: one cannot be written, or holds something else by now.
    """
    from pytest_gradguard.reports.target import Target, TargetError

    with ExitStack() as stack:
        path = ""
        try:
            ready = []
            for path in after:
                target = stack.enter_context(Target(path))
                held, data = read(path), after[path]
                source: bytes | None = held
                if path.endswith(NOTEBOOK):
                    from gradguard_lint.fixes.cells import source_of

                    source = source_of(held)
                if source != before[path]:
                    raise NotWritten(path, "not written: it has changed since it was read")
                ready.append((target, in_file(path, held, data)))
            for target, data in ready:
                target.write_bytes(data)
        except TargetError as error:
            raise NotWritten(path, str(error).removeprefix(f"{path}: ")) from None
        except Unusable as error:
            raise NotWritten(path, f"not written: it {error}") from None


def in_file(path: str, held: bytes, source: bytes) -> bytes:
    """What a file that holds `held` becomes with `source`: of a notebook, the cells' text.

    Raises:
        NotWritten: the notebook cannot be written back as it was.
    """
    if not path.endswith(NOTEBOOK):
        return source
    from gradguard_lint.fixes.cells import with_source

    try:
        return with_source(held, source)
    except Unwritable as error:
        raise NotWritten(path, f"not written: {error}") from None


def diff(path: str, before: bytes, after: bytes) -> str:
    """The change of a file, as a unified diff."""
    from difflib import unified_diff

    from gradguard_lint.fixes.edits import decoded, lines_of

    old, new = ([line for line in lines_of(decoded(data)[0]) if line] for data in (before, after))
    return "".join(
        line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        for line in unified_diff(old, new, path, path, lineterm="\n")
    )
