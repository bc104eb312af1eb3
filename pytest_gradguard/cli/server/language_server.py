"""The language server: findings as one types, repairs as code actions, entries as hovers.

https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import TextDocument

from gradguard_lint.project.files import Trouble
from gradguard_lint.reading.text import encode
from pytest_gradguard import __version__, pitfalls
from pytest_gradguard.cli.server.checking import Checked, check
from pytest_gradguard.cli.server.messages import Protocol
from pytest_gradguard.findings import Edit, Finding, Repair, Severity
from pytest_gradguard.pitfalls import Pitfall
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


class Server(LanguageServer):
    """One editor's server; everything but the checks themselves happens in its event loop."""

    def __init__(self) -> None:
        super().__init__("gradguard", __version__, protocol_cls=Protocol)
        self.checked = Checked({}, {})
        self._published: set[str] = set()
        self._wait = _SHORTEST_WAIT
        self._pending: asyncio.Task[None] | None = None
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
        if self._pending is not None:
            self._pending.cancel()  # a check that runs already ends unheard
        self._pending = asyncio.get_running_loop().create_task(self._check_soon())

    async def _check_soon(self) -> None:
        await asyncio.sleep(self._wait)
        async with self._running:
            begun = time.monotonic()
            unsaved = {
                document.path: encode(document.source)
                for document in self.workspace.text_documents.values()
                if document.path and document.path.endswith(".py")
            }
            self.checked = await asyncio.to_thread(check, self._folders(), unsaved)
            self._wait = max(_SHORTEST_WAIT, time.monotonic() - begun)
        self._publish()

    def _folders(self) -> list[str]:
        folders = [to_fs_path(uri) for uri in self.workspace.folders]
        if not folders and self.workspace.root_path:
            folders = [self.workspace.root_path]
        return [folder for folder in folders if folder and os.path.isdir(folder)]

    def _publish(self) -> None:
        paths = {*self.checked.findings, *self.checked.problems}
        for path in sorted(paths | self._published):
            diagnostics = [
                *map(self.diagnostic, self.checked.findings.get(path, ())),
                *map(_problem, self.checked.problems.get(path, ())),
            ]
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri=_uri(path), diagnostics=diagnostics)
            )
        self._published = paths

    def diagnostic(self, finding: Finding) -> types.Diagnostic:
        """`finding` as the protocol has it."""
        related = [
            types.DiagnosticRelatedInformation(
                types.Location(_uri(step.path), _line(step.line)), shown_lines(step.message)
            )
            for step in finding.trace
        ]
        return types.Diagnostic(
            range=self.range_of(finding),
            message=shown_lines(finding.message + (f"\n{finding.fix}" if finding.fix else "")),
            severity=_SEVERITIES[finding.severity],
            code=finding.code,
            code_description=types.CodeDescription(pitfalls.get(finding.code).page),
            source=_SOURCE,
            related_information=related,
        )

    def range_of(self, place: Finding | Edit) -> types.Range:
        """Where `place` is, in the units that the client counts columns in."""
        where = place.location if isinstance(place, Finding) else place
        start = types.Position(where.line - 1, where.column - 1)
        end = types.Position((where.end_line or where.line) - 1, (where.end_column or 1) - 1)
        document = self.workspace.get_text_document(_uri(where.path))
        return document.position_codec.range_to_client_units(
            document.lines, types.Range(start, max(start, end))
        )

    def findings_in(self, uri: str, where: types.Range) -> Iterator[Finding]:
        """The findings of a document that touch a range."""
        for finding in self.checked.findings.get(os.path.abspath(to_fs_path(uri) or ""), ()):
            place = self.range_of(finding)
            if place.start <= where.end and where.start <= place.end:
                yield finding

    def action(self, finding: Finding, repair: Repair) -> types.CodeAction:
        """The action that makes the edits of `repair`."""
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in repair.edits:
            text = types.TextEdit(self.range_of(edit), edit.content)
            changes.setdefault(_uri(edit.path), []).append(text)
        return types.CodeAction(
            title=f"{finding.code}: {repair.message}" + ("" if repair.is_safe else " (unsafe)"),
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[self.diagnostic(finding)],
            is_preferred=repair.is_safe,
            edit=types.WorkspaceEdit(changes=changes),
        )


def create() -> Server:
    """A server with all that it serves."""
    server = Server()

    @server.feature(types.INITIALIZED)
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def changed(ls: Server, params: object) -> None:
        ls.changed()

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    def code_actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
        found = ls.findings_in(params.text_document.uri, params.range)
        return [ls.action(finding, finding.edits) for finding in found if finding.edits is not None]

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
        text = "\n\n---\n\n".join(_explained(pitfalls.get(code)) for code in codes)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    return server


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
        range=_line(max(trouble.line, 1)),
        message=shown_lines(trouble.message),
        severity=types.DiagnosticSeverity.Error,
        source=_SOURCE,
    )


def _uri(path: str) -> str:
    return from_fs_path(os.path.abspath(path)) or ""


def _line(number: int) -> types.Range:
    """A line as a whole."""
    return types.Range(types.Position(number - 1, 0), types.Position(number, 0))


def _explained(pitfall: Pitfall) -> str:
    paragraphs = (
        f"**{pitfall.code} {pitfall.name}** ({pitfall.severity.label}): {pitfall.title}.",
        pitfall.happens,
        f"**Why.** {pitfall.why}",
        f"**How to fix it.** {pitfall.fix}",
        f"[{pitfall.code} in the documentation]({pitfall.page})",
    )
    return "\n\n".join(paragraphs)
