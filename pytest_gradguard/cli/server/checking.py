"""The linter over an editor's folders, with what is not saved yet."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pygls.uris import from_fs_path

from gradguard_lint.fixes.edits import RawEdit, between, decoded, lines_of
from gradguard_lint.fixes.noqa import silencing
from gradguard_lint.fixes.session import Session
from gradguard_lint.outcome import Outcome
from gradguard_lint.project.configuration import Configurations
from gradguard_lint.project.files import Trouble
from gradguard_lint.reading.notebooks import read_notebook
from gradguard_lint.reading.source import tree_of
from gradguard_lint.reading.text import NOTEBOOK, SourceError, decode, encode
from gradguard_lint.rules import UNUSED_SUPPRESSION
from gradguard_lint.run import Request
from gradguard_lint.run import run as lint
from pytest_gradguard.cli.lint.selection import Selection
from pytest_gradguard.findings import Edit, Finding, Location, TraceStep
from pytest_gradguard.records import replace
from pytest_gradguard.reports.overview import linked

__all__ = ["Checked", "Document", "Opened", "Parsed", "Place", "check"]

Place = Location | TraceStep | Edit
"""A place in a file, or in a cell of a notebook."""

_CONFIGURED = Selection(None, (), (), None)


class Document(NamedTuple):
    """A text that an editor holds: a file, or one of the code cells of a notebook."""

    uri: str
    text: str


class Opened(NamedTuple):
    """A file that an editor holds, by its absolute path: one document, or a notebook's cells."""

    path: str
    documents: tuple[Document, ...]

    @property
    def is_notebook(self) -> bool:
        return self.path.endswith(NOTEBOOK)

    @property
    def data(self) -> bytes:
        """What the file would hold, if it was saved."""
        if not self.is_notebook:
            return encode(self.documents[0].text)
        cells = [{"cell_type": "code", "source": cell.text} for cell in self.documents]
        return json.dumps({"nbformat": 4, "cells": cells}).encode()


class Parsed:
    """The last text of each document that was Python: it is checked while the present one is not.

    So findings do not come and go with each parenthesis that somebody types.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def of(self, opened: Iterable[Opened]) -> Iterator[Opened]:
        """The files of `opened` with these texts; without what was never Python."""
        before, self._texts = self._texts, {}
        for file in opened:
            documents = []
            for document in file.documents:
                uri, known = document.uri, before.get(document.uri)
                if document.text != known and not _parses(Opened(file.path, (document,))):
                    if known is None:
                        continue
                    document = Document(uri, known)
                self._texts[uri] = document.text
                documents.append(document)
            if documents:
                yield Opened(file.path, tuple(documents))


def _parses(file: Opened) -> bool:
    try:
        if file.is_notebook:
            return not read_notebook(file.data).broken
        tree_of(file.data, file.path)
    except SourceError:
        return False
    return True


class Checked:
    """What one check found.

    Attributes:
        findings: those that each file's configuration shows, by the address of their document;
            without those in notebooks that are not opened, which are no text documents.
        problems: configurations that cannot be used, by address.
    """

    def __init__(self, request: Request, outcome: Outcome, opened: Iterable[Opened]) -> None:
        self._request = request
        self._contents = outcome.contents
        self._notebooks = outcome.notebooks
        self._uris: dict[tuple[str, int | None], str] = {}
        for file in opened:
            uris = [document.uri for document in file.documents]
            if not file.is_notebook:
                self._uris[file.path, None] = uris[0]
            elif file.path in self._notebooks:
                for cell in self._notebooks[file.path].cells:
                    self._uris[file.path, cell.number] = uris[cell.listed_at]
        self.findings: dict[str, list[Finding]] = defaultdict(list)
        self.problems: dict[str, list[Trouble]] = defaultdict(list)
        outcome.place_in_cells()
        shown, _ = _CONFIGURED.divide(outcome.findings, request.configurations)
        for finding in linked(shown):
            uri = self.uri(finding.location)
            if uri is not None:
                self.findings[uri].append(finding)
        for error in outcome.errors:
            if error.path.endswith(".toml"):  # that a file is no Python, the editor says itself
                self.problems[from_fs_path(os.path.abspath(error.path)) or ""].append(error)

    def uri(self, place: Place) -> str | None:
        """The address of the document that `place` is in; None for a cell that is not opened."""
        path = os.path.abspath(place.path)
        uri = self._uris.get((path, place.cell))
        return uri if uri or place.cell is not None else from_fs_path(path)

    def lines(self, place: Place) -> list[str]:
        """The lines, with their ends, that were checked of the document that `place` is in."""
        path = os.path.abspath(place.path)
        if place.cell is not None:
            return lines_of(self._notebooks[path].cells[place.cell - 1].text)
        try:
            return lines_of(decode(self._contents.get(path, b"")))
        except SourceError:
            return []

    def ignoring(self, finding: Finding) -> list[Edit]:
        """The edits that silence `finding`, as ``--add-noqa`` does; none where there are none."""
        where = finding.location
        path, line = os.path.abspath(where.path), where.line
        if finding.code == UNUSED_SUPPRESSION:
            return []
        if where.cell is not None:
            line += self._notebooks[path].cells[where.cell - 1].first - 1
        edits = silencing(path, self._contents[path], {line: [finding.code]}, "")
        return [*map(self._placed, edits)]

    def repairing(self, finding: Finding) -> list[Edit]:
        """The edits of all safe repairs in the file of `finding`, as ``--fix`` makes them."""
        path = os.path.abspath(finding.location.path)
        request = replace(self._request, progress=None)

        def wanted(raw: dict[str, Any]) -> bool:
            alone = {**raw, "otherwise": []}
            is_safe = raw["edits"]["applicability"] == "safe"
            in_file = os.path.abspath(raw["path"]) == path
            return (
                is_safe and in_file and bool(_CONFIGURED.divide([alone], request.configurations)[0])
            )

        session = Session(lint(request), lambda over: lint(replace(request, over=over)), wanted)
        if any(self._contents.get(path) != data for path, data in session.before.items()):
            return []  # a file has changed on the disk
        return [
            self._placed(edit)
            for path, data in session.before.items()
            for edit in between(path, decoded(data)[0], decoded(session.after[path])[0])
        ]

    def _placed(self, edit: RawEdit) -> Edit:
        """`edit` of the source of a file; in a notebook, with the lines of its cell."""
        if edit["path"] not in self._notebooks:
            return Edit(**edit)
        cell, line = self._notebooks[edit["path"]].place(edit["line"])
        end_line = edit["end_line"] - edit["line"] + line
        return Edit(**{**edit, "line": line, "end_line": end_line, "cell": cell.number})


def check(
    folders: Iterable[str], opened: Iterable[Opened], progress: Callable[[int, int], None]
) -> Checked:
    """Check `folders`, and the files of `opened` outside of them.

    It is the same run as that of ``gradguard lint`` there, in one process: the server has threads,
    and does not fork.

    Args:
        folders: absolute paths.
        opened: what the editor holds.
        progress: as for `Request`.
    """
    opened = list(opened)
    unsaved = {file.path: file.data for file in opened}
    request = Request(
        (*folders, *filter(os.path.exists, unsaved)),
        Configurations(),
        force_exclude=True,
        jobs=1,
        unsaved=unsaved,
        progress=progress,
    )
    return Checked(request, lint(request), opened)
