"""An editor: a real client that talks to a language server of its own over standard streams."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

WORKER = """\
import torch
from joblib import Parallel, delayed


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""
CLEAN = WORKER.replace(', device="cuda"', "")

SERVER = (sys.executable, "-m", "pytest_gradguard", "server")


class Editor:
    """A client with one folder, what it has opened, and what the server has told it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = LanguageClient("test", "1")
        self.published: dict[str, list[types.Diagnostic]] = {}
        self.progress: list[Any] = []
        self.news = asyncio.Condition()
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        async def publish(params: types.PublishDiagnosticsParams) -> None:
            async with self.news:
                self.published[Path(params.uri).name] = list(params.diagnostics)
                self.news.notify_all()

        @self.client.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def create(params: types.WorkDoneProgressCreateParams) -> None:
            self.progress.append(params)

        @self.client.feature(types.PROGRESS)
        def progress(params: types.ProgressParams) -> None:
            self.progress.append(params)

    def uri(self, name: str) -> str:
        """The address of a file, or of a cell: ``book.ipynb#1``."""
        uri = (self.folder / name.partition("#")[0]).as_uri()
        if "#" in name:
            return f"vscode-notebook-cell{uri.removeprefix('file')}#{name.partition('#')[2]}"
        return uri

    def open(self, name: str, text: str) -> None:
        item = self._item(name, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def _item(self, name: str, text: str) -> types.TextDocumentItem:
        self.versions[name], self.texts[name] = 1, text
        return types.TextDocumentItem(self.uri(name), "python", 1, text)

    def open_notebook(self, name: str, *texts: str) -> None:
        """Open a notebook whose cells are called ``name#1``, ``name#2`` and so on."""
        items = [self._item(f"{name}#{number}", text) for number, text in enumerate(texts, 1)]
        cells = [types.NotebookCell(types.NotebookCellKind.Code, item.uri) for item in items]
        book = types.NotebookDocument(self.uri(name), "jupyter-notebook", 1, cells)
        self.client.notebook_document_did_open(types.DidOpenNotebookDocumentParams(book, items))

    def change_cells(self, name: str, cells: types.NotebookDocumentCellChanges) -> None:
        book = types.VersionedNotebookDocumentIdentifier(version=2, uri=self.uri(name))
        change = types.NotebookDocumentChangeEvent(cells=cells)
        self.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(book, change)
        )

    def type(self, name: str, text: str) -> None:
        self.versions[name] += 1
        self.texts[name] = text
        document = types.VersionedTextDocumentIdentifier(self.versions[name], self.uri(name))
        change = types.TextDocumentContentChangeWholeDocument(text)
        if "#" in name:
            changed = types.NotebookDocumentCellContentChanges(document, [change])
            cells = types.NotebookDocumentCellChanges(text_content=[changed])
            self.change_cells(name.partition("#")[0], cells)
            return
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def close(self, name: str) -> None:
        document = types.TextDocumentIdentifier(self.uri(name))
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(document))

    async def until(self, shown: Callable[[dict[str, list[str]]], bool]) -> None:
        """Wait until the codes by file name are as `shown` wants them."""
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: shown(self.codes())), 60)

    def codes(self) -> dict[str, list[str]]:
        return {
            name: [str(diagnostic.code) for diagnostic in diagnostics]
            for name, diagnostics in self.published.items()
            if diagnostics
        }

    async def actions(
        self, name: str, where: types.Range, only: Sequence[str] | None = None
    ) -> dict[str, types.CodeAction]:
        """The actions in a range of a document, by title."""
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(self.uri(name)),
                where,
                types.CodeActionContext(diagnostics=[], only=only),
            )
        )
        return {action.title: action for action in found or ()}

    def make(self, edit: types.WorkspaceEdit) -> None:
        """Make edits in what is opened."""
        names = {self.uri(name): name for name in self.texts}
        for uri, edits in edit.changes.items():
            self.type(names[uri], edited(self.texts[names[uri]], edits))

    async def hover(self, name: str, line: int, column: int) -> str | None:
        document = types.TextDocumentIdentifier(self.uri(name))
        where = types.Position(line, column)
        hover = await self.client.text_document_hover_async(types.HoverParams(document, where))
        return None if hover is None else hover.contents.value


@asynccontextmanager
async def editor(
    folder: Path,
    encoding: str = "utf-16",
    command: Sequence[str] = SERVER,
    *,
    resolves: bool = True,
    shows_progress: bool = False,
) -> AsyncIterator[Editor]:
    one = Editor(folder)
    await one.client.start_io(*command, cwd=str(folder))
    general = types.GeneralClientCapabilities(
        position_encodings=[types.PositionEncodingKind(encoding)]
    )
    resolve = types.ClientCodeActionResolveOptions(["edit"]) if resolves else None
    action = types.CodeActionClientCapabilities(resolve_support=resolve)
    capabilities = types.ClientCapabilities(
        general=general,
        text_document=types.TextDocumentClientCapabilities(code_action=action),
        window=types.WindowClientCapabilities(work_done_progress=shows_progress),
    )
    folders = [types.WorkspaceFolder(folder.as_uri(), "folder")]
    await one.client.initialize_async(
        types.InitializeParams(capabilities, workspace_folders=folders)
    )
    one.client.initialized(types.InitializedParams())
    try:
        yield one
    finally:
        await one.client.shutdown_async(None)
        one.client.exit(None)
        await one.client.stop()


def in_an_editor(
    folder: Path, use: Callable[[Editor], Coroutine[Any, Any, None]], *args: Any, **options: Any
) -> None:
    """Run `use` with an editor, which further arguments are for; it ends at a limit."""

    async def run() -> None:
        async with editor(folder, *args, **options) as one:
            await asyncio.wait_for(use(one), 120)

    asyncio.run(run())


def edited(text: str, edits: Sequence[types.TextEdit]) -> str:
    """`text` after `edits`, whose columns count UTF-16."""
    data = text.encode("utf-16-le")
    starts = [0]
    for line in re.split(r"(?<=\n)", text):
        starts.append(starts[-1] + len(line.encode("utf-16-le")))
    for edit in sorted(edits, key=lambda edit: edit.range.start, reverse=True):
        start, end = (
            starts[place.line] + 2 * place.character for place in (edit.range.start, edit.range.end)
        )
        data = data[:start] + edit.new_text.encode("utf-16-le") + data[end:]
    return data.decode("utf-16-le")
