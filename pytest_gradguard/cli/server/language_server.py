"""The language server: findings as one types, repairs as code actions, entries as hovers.

https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from gradguard_lint.outcome import Outcome
from gradguard_lint.project.configuration import Configurations
from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.files import Trouble
from gradguard_lint.reading.text import NOTEBOOK, SourceError, decode
from gradguard_lint.run import Request
from pytest_gradguard import __version__, pitfalls
from pytest_gradguard.cli.explain import markdown
from pytest_gradguard.cli.server.checking import Checked, Document, Opened, Parsed, Place, check
from pytest_gradguard.cli.server.messages import Protocol
from pytest_gradguard.cli.server.positions import View, whole_line
from pytest_gradguard.cli.server.progress import shown
from pytest_gradguard.findings import Edit, Finding, Severity
from pytest_gradguard.reports.printable import shown_lines

__all__ = ["Server", "create"]

_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}
_SOURCE = "gradguard"
_CODE = re.compile(r"GG\d{3}")
_SHORTEST_WAIT = 0.2
"""Seconds without a keystroke before a check begins; at least as long as the last one took."""

_FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.{_SOURCE}"
_FIX_NOTEBOOK = f"notebook.{_FIX_ALL}"
"""For a cell: clients ask for ``source.fixAll`` in each, and would make the edits several times."""


class Server(LanguageServer):
    """One editor's server; everything but the checks themselves happens in its event loop."""

    def __init__(self) -> None:
        super().__init__(
            "gradguard",
            __version__,
            protocol_cls=Protocol,
            notebook_document_sync=types.NotebookDocumentSyncOptions(
                [types.NotebookDocumentFilterWithCells([types.NotebookCellLanguage("python")])]
            ),
        )
        self.checked = Checked(Request((), Configurations()), Outcome(), ())
        self._views: dict[str, View] = {}
        self._parsed = Parsed()
        self._published: set[str] = set()
        self._wait = _SHORTEST_WAIT
        self._changes = 0
        self._changed_at = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Tell the client of an error that no answer has told it of."""
        if isinstance(error, ValueError) and source is JsonRpcException:
            assert isinstance(self.protocol, Protocol)
            self.protocol.refuse_text()
        elif not isinstance(error, JsonRpcException) or source is not JsonRpcException:
            super().report_server_error(error, source)

    def changed(self) -> None:
        """Check again, once nobody has typed for a moment."""
        self._views.clear()
        self._changes += 1
        self._changed_at = time.monotonic()
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def up_to_date(self) -> None:
        """Wait until the last change is checked."""
        if self._checking is not None:
            await asyncio.shield(self._checking)
        self._views.clear()  # a file that is not opened may have changed

    async def _check(self) -> None:
        """Check, one time after another, until nothing has changed in the meantime."""
        checked = 0
        while checked < self._changes:
            while (rest := self._changed_at + self._wait - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            checked, begun = self._changes, time.monotonic()
            opened = self._parsed.of(list(self._opened()))
            async with self._running, shown(self, "Reading the project") as progress:
                self.checked = await asyncio.to_thread(check, self._folders(), opened, progress)
            self._wait = max(_SHORTEST_WAIT, time.monotonic() - begun)
            self._publish()

    def _opened(self) -> Iterator[Opened]:
        """The Python files and notebooks that the editor holds."""
        notebooks = self.workspace.notebook_documents.values()
        cells = {unquote(cell.document) for notebook in notebooks for cell in notebook.cells}
        for uri, document in self.workspace.text_documents.items():
            path = _path_of(uri)
            if uri not in cells and path.endswith(".py"):
                yield Opened(path, (Document(document.uri, document.source),))
        for notebook in notebooks:
            documents = [self.workspace.get_text_document(cell.document) for cell in notebook.cells]
            path = _path_of(notebook.uri)
            if path.endswith(NOTEBOOK):
                found = (it for it in documents if it.language_id == "python")
                yield Opened(path, tuple(Document(it.uri, it.source) for it in found))

    def _folders(self) -> list[str]:
        folders = [to_fs_path(uri) for uri in self.workspace.folders]
        if not folders and self.workspace.root_path:
            folders = [self.workspace.root_path]
        return [folder for folder in folders if folder and os.path.isdir(folder)]

    def _publish(self) -> None:
        self._views.clear()
        checked = self.checked
        uris = {*checked.findings, *checked.problems}
        for uri in sorted(uris | self._published):
            diagnostics = [
                *(self.diagnostic(finding) for finding in checked.findings.get(uri, ())),
                *map(_problem, checked.problems.get(uri, ())),
            ]
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics)
            )
        self._published = uris

    def diagnostic(self, finding: Finding) -> types.Diagnostic:
        """`finding` as the protocol has it."""
        related = [
            types.DiagnosticRelatedInformation(
                types.Location(uri, whole_line(self._view(step, uri).line(step.line))),
                shown_lines(step.message),
            )
            for step in finding.trace
            if (uri := self.checked.uri(step)) is not None
        ]
        return types.Diagnostic(
            range=self._range_of(finding),
            message=shown_lines(finding.message + (f"\n{finding.fix}" if finding.fix else "")),
            severity=_SEVERITIES[finding.severity],
            code=finding.code,
            code_description=types.CodeDescription(pitfalls.get(finding.code).page),
            source=_SOURCE,
            related_information=related,
        )

    def _range_of(self, finding: Finding) -> types.Range:
        where = finding.location
        return self._view(where, self.checked.uri(where) or "").range_of(where)

    def _view(self, place: Place, uri: str) -> View:
        """The document at `uri`, which `place` is in."""
        if uri not in self._views:
            codec = self.workspace.position_codec
            self._views[uri] = View(self.checked.lines(place), self._text(uri), codec)
        return self._views[uri]

    def _text(self, uri: str) -> str | None:
        """What a document holds now; None where it cannot be read."""
        document = self.workspace.text_documents.get(unquote(uri))
        if document is not None:
            return str(document.source)
        try:
            return decode(read(_path_of(uri)))
        except (SourceError, Unusable):
            return None

    def findings_in(self, uri: str, where: types.Range) -> list[Finding]:
        """The findings of a document that touch a range."""
        places = [(it, self._range_of(it)) for it in self.checked.findings.get(uri, ())]
        return [it for it, at in places if at.start <= where.end and where.start <= at.end]

    def quick_fixes(self, uri: str, where: types.Range) -> Iterator[types.CodeAction]:
        """What can be done about the findings of a document that touch a range."""
        ignored = set()
        for finding in self.findings_in(uri, where):
            repair = finding.edits
            if repair is not None:
                title = f"{finding.code}: {repair.message}" + (
                    "" if repair.is_safe else " (unsafe)"
                )
                yield from self._quick_fix(finding, title, repair.edits, repair.is_safe)
            if (finding.code, finding.location.line) not in ignored:
                ignored.add((finding.code, finding.location.line))
                title = f"{finding.code}: ignore on this line"
                yield from self._quick_fix(finding, title, self.checked.ignoring(finding), False)

    def _quick_fix(
        self, finding: Finding, title: str, edits: Iterable[Edit], is_preferred: bool
    ) -> Iterator[types.CodeAction]:
        edit = self._workspace_edit(edits)
        if edit is not None:
            yield types.CodeAction(
                title=title,
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[self.diagnostic(finding)],
                is_preferred=is_preferred,
                edit=edit,
            )

    def fix_all(self, uri: str) -> types.CodeAction | None:
        """The action that makes all safe repairs in a document, without its edit, if there are any;
        in a cell, those in its notebook."""
        if self._repairable(uri) is None:
            return None
        in_cell = self.workspace.get_notebook_document(cell_uri=uri) is not None
        return types.CodeAction(
            title="gradguard: fix all that have a safe fix",
            kind=_FIX_NOTEBOOK if in_cell else _FIX_ALL,
            data=uri,
        )

    async def with_edit(self, action: types.CodeAction) -> types.CodeAction:
        """`action`, with its edit if it can be made."""
        if action.edit is None and isinstance(action.data, str):
            await self.up_to_date()
            checked, finding = self.checked, self._repairable(action.data)
            if finding is not None:
                async with self._running:
                    edits = await asyncio.to_thread(checked.repairing, finding)
                if checked is self.checked:
                    action.edit = self._workspace_edit(edits)
        return action

    def _repairable(self, uri: str) -> Finding | None:
        """A finding with a safe repair in the file of a document that is as it was checked."""
        notebook = self.workspace.get_notebook_document(cell_uri=uri)
        uris = [uri] if notebook is None else [cell.document for cell in notebook.cells]
        for one in uris:
            for finding in self.checked.findings.get(one, ()):
                if finding.edits is not None and finding.edits.is_safe:
                    is_current = self._view(finding.location, one).is_current
                    return finding if is_current else None
        return None

    def _workspace_edit(self, edits: Iterable[Edit]) -> types.WorkspaceEdit | None:
        """`edits` as the protocol has them; None without any, or where a text has changed."""
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in edits:
            uri = self.checked.uri(edit)
            if uri is None or not (view := self._view(edit, uri)).is_current:
                return None
            changes.setdefault(uri, []).append(types.TextEdit(view.range_of(edit), edit.content))
        return types.WorkspaceEdit(changes=changes) if changes else None


def create() -> Server:
    """A server with all that it serves."""
    server = Server()

    @server.feature(types.INITIALIZED)
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_SAVE)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def changed(ls: Server, params: object) -> None:
        ls.changed()

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(
            code_action_kinds=[types.CodeActionKind.QuickFix, _FIX_ALL, _FIX_NOTEBOOK],
            resolve_provider=True,
        ),
    )
    async def code_actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
        await ls.up_to_date()
        uri, only = params.text_document.uri, params.context.only
        found: list[types.CodeAction] = []
        if _is_wanted(types.CodeActionKind.QuickFix, only):
            found += ls.quick_fixes(uri, params.range)
        action = ls.fix_all(uri)
        if action is not None and _is_wanted(action.kind, only):
            if not _resolves(ls.client_capabilities):
                action = await ls.with_edit(action)
            found.append(action)
        return found

    @server.feature(types.CODE_ACTION_RESOLVE)
    async def resolve(ls: Server, action: types.CodeAction) -> types.CodeAction:
        return await ls.with_edit(action)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        document = ls.workspace.get_text_document(params.text_document.uri)
        position = params.position
        found = ls.findings_in(params.text_document.uri, types.Range(position, position))
        codes = dict.fromkeys(finding.code for finding in found)
        named = _code_at(document, position)
        if named is not None:
            codes[named] = None
        if not codes:
            return None
        text = "\n\n---\n\n".join(markdown(pitfalls.get(code)) for code in codes)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    return server


def _is_wanted(
    kind: types.CodeActionKind | str | None, only: Sequence[types.CodeActionKind | str] | None
) -> bool:
    """Whether a client wants actions of a kind that asks for `only` these, if for any."""
    written, *wanted = (str(getattr(it, "value", it)) for it in (kind, *(only or ())))
    return not wanted or any(f"{written}.".startswith(f"{it}.") for it in wanted)


def _resolves(capabilities: types.ClientCapabilities) -> bool:
    """Whether the client asks for the edit of an action once somebody chooses it."""
    text = capabilities.text_document
    action = text.code_action if text is not None else None
    support = action.resolve_support if action is not None else None
    return support is not None and "edit" in support.properties


def _path_of(uri: str) -> str:
    """The absolute path of a file; "" for what is none, such as an older version of one."""
    path = to_fs_path(uri)
    return os.path.abspath(path) if path else ""


def _code_at(document: TextDocument, position: types.Position) -> str | None:
    """The code that is written at `position`, in a comment that silences it or anywhere else."""
    try:
        lines = document.lines
    except (OSError, ValueError):  # the editor has not opened it, and it cannot be read
        return None
    if position.line >= len(lines):
        return None
    where = document.position_codec.position_from_client_units(lines, position)
    for match in _CODE.finditer(lines[where.line]):
        if match.start() <= where.character <= match.end() and match.group() in pitfalls.codes():
            return match.group()
    return None


def _problem(trouble: Trouble) -> types.Diagnostic:
    return types.Diagnostic(
        range=whole_line(max(trouble.line, 1) - 1),
        message=shown_lines(trouble.message),
        severity=types.DiagnosticSeverity.Error,
        source=_SOURCE,
    )
