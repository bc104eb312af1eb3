"""``--fix``, ``--diff`` and ``--add-noqa``: what the linter writes into files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gradguard.cli.lint.output import no_safe_repairs
from pytest_gradguard.cli.streams import complain, write, write_bytes
from pytest_gradguard.cli.words import counted
from pytest_gradguard.findings import display_path
from pytest_gradguard.records import replace

if TYPE_CHECKING:
    from gradguard_lint.outcome import Outcome
    from gradguard_lint.project.configuration import Configurations
    from gradguard_lint.run import Request
    from pytest_gradguard.cli.lint.selection import Selection
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.reports.target import Target

__all__ = ["Repairs"]


class Repairs:
    """What one command changes.

    Attributes:
        fixed: how many of the findings that would be shown are repaired.
        before: what the changed files held.
        after: what they hold with the repairs.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        selection: Selection,
        configurations: Configurations,
        request: Request,
    ) -> None:
        self.args = args
        self.selection = selection
        self.configurations = configurations
        self.request = request
        self.fixed = 0
        self.before: Mapping[str, bytes] = {}
        self.after: Mapping[str, bytes] = {}
        self._source = b""

    def made(self, outcome: Outcome) -> Outcome:
        """Make the repairs, in the files unless only a difference is asked for; what is left."""
        from gradguard_lint.fixes.edits import too_large
        from gradguard_lint.fixes.session import Session
        from gradguard_lint.project.files import Trouble

        large = {
            path: why
            for path in {finding.location.path for finding in self._shown(outcome)}
            for why in [too_large(outcome.contents.get(path, b""))]
            if why
        }
        session = Session(outcome, self._again, self._wanted)
        self.before, self.after = session.before, session.after
        if not self.args.diff and not self._write(outcome):
            return outcome
        self.fixed = len(self._shown(outcome)) - len(self._shown(session.outcome))
        left: Outcome = session.outcome
        left.warnings += [
            Trouble(path, 1, f"no repairs are looked for in this file: {why}")
            for path, why in sorted(large.items())
        ]
        return left

    def silenced(self, outcome: Outcome) -> Outcome:
        """Silence each finding by a comment in its file; what is left."""
        from gradguard_lint.fixes.edits import edited_bytes
        from gradguard_lint.fixes.noqa import silencing
        from gradguard_lint.raw import everywhere
        from gradguard_lint.rules import UNUSED_SUPPRESSION

        wanted: dict[str, dict[int, set[str]]] = {}
        places = [raw for raw in everywhere(outcome.findings) if raw["code"] != UNUSED_SUPPRESSION]
        for finding in self.selection.divide(places, self.configurations)[0]:
            where = finding.location
            if where.path in outcome.contents:
                lines = wanted.setdefault(where.path, {})
                lines.setdefault(where.line, set()).add(finding.code)
        after = {}
        comments = 0
        for path, lines in wanted.items():
            data = outcome.contents[path]
            edits = silencing(path, data, lines, self.args.add_noqa)
            comments += len(edits)
            after[path] = edited_bytes(data, edits)
        self.before = {path: outcome.contents[path] for path in after}
        self.after = after
        if not after or not self._write(outcome):
            return outcome
        complain(f"Added {counted(comments, 'noqa comment')}.")
        return self._again(after)

    def print_diff(self, target: Target | None, left: Outcome) -> bool:
        """Print what would change; whether it is anything. `left` is what is found after it."""
        text = "".join(part for path in sorted(self.after) for part in self._diffs(path))
        (write if target is None else target.write)(text)
        unsafe = 0 if self.args.unsafe_fixes else sum(bool(one.edits) for one in self._shown(left))
        if self.after:
            more = f" ({unsafe} more with `--unsafe-fixes`)" if unsafe else ""
            complain(f"Would fix {counted(self.fixed, 'finding')}{more}.")
        elif unsafe:
            complain(no_safe_repairs(unsafe))
        return bool(self.after)

    def _diffs(self, path: str) -> Iterator[str]:
        """What changes in a file; of a notebook, in each cell."""
        from gradguard_lint.fixes.session import diff

        name = display_path(path)
        if not path.endswith(".ipynb"):
            yield diff(name, self.before[path], self.after[path])
            return
        from gradguard_lint.fixes.cells import changed
        from gradguard_lint.project.contents import read

        data = read(path) if self.request.stdin is None else self.request.stdin[1]
        for cell, after in changed(data, self.after[path]):
            yield diff(f"{name}:cell {cell.number}", cell.text.encode(), after.encode())

    def print_source(self) -> None:
        """Print what came from standard input, repaired."""
        assert self.request.stdin is not None
        write_bytes(self._source or self.request.stdin[1])

    def _again(self, over: Mapping[str, bytes]) -> Outcome:
        from gradguard_lint.run import run

        return run(replace(self.request, over=over))

    def _shown(self, outcome: Outcome) -> list[Finding]:
        return self.selection.divide(outcome.findings, self.configurations)[0]

    def _wanted(self, raw: dict[str, Any]) -> bool:
        alone = {**raw, "otherwise": []}
        allowed = self.args.unsafe_fixes or raw["edits"]["applicability"] == "safe"
        return allowed and bool(self.selection.divide([alone], self.configurations)[0])

    def _write(self, outcome: Outcome) -> bool:
        """Write the files, all or none, or keep what is for standard output; where that fails,
        `outcome` tells why."""
        from gradguard_lint.fixes.session import NotWritten, in_file
        from gradguard_lint.fixes.session import write as write_files
        from gradguard_lint.project.files import Trouble

        try:
            if self.request.stdin is None:
                write_files(self.before, self.after)
                return True
            for path, source in self.after.items():
                self._source = in_file(path, self.request.stdin[1], source)
        except NotWritten as error:
            outcome.errors.append(Trouble(error.path, 1, error.reason, whole=True))
            return False
        return True
