"""What an editor holds is checked: text that is no Python for a moment, and cells of notebooks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from editor_client import WORKER, Editor, in_an_editor
from lsprotocol import types

SETUP = "import torch\nfrom joblib import Parallel, delayed"
WORK = 'def work(k):\n    return torch.ones(3, device="cuda").sum().item() * k'
CALL = "results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))"
SAFE = 'import joblib\njoblib.Parallel(2, backend="dask")(joblib.delayed(abs)(i) for i in [1])'


def line_of(one: Editor, name: str) -> int:
    (found,) = one.published[name]
    return found.range.start.line


async def until_on_line(one: Editor, name: str, line: int) -> None:
    await one.until(lambda codes: len(codes.get(name, ())) == 1 and line_of(one, name) == line)


def test_findings_stay_and_move_with_their_lines_while_the_text_is_no_python(tmp_path):
    (tmp_path / "train.py").write_text(WORKER, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", WORKER)
        one.type("train.py", WORKER)
        await until_on_line(one, "train.py", 5)
        one.type("train.py", f"x = (\n{WORKER}")
        await until_on_line(one, "train.py", 6)
        assert (await one.hover("train.py", 6, 15)).startswith("**GG201 ")
        assert one.published["train.py"][0].related_information[0].location.range.start.line == 9
        one.type("train.py", WORKER.replace("import torch\n", "") + "x = (\n")
        await until_on_line(one, "train.py", 4)
        one.type("train.py", WORKER.replace(".item()", ".item("))  # in the line itself
        await until_on_line(one, "train.py", 5)
        one.type("train.py", WORKER.partition("def work")[0] + "def work(")
        await until_on_line(one, "train.py", 4)  # the line is gone
        one.type("train.py", f"x = 1\n{WORKER}")
        await until_on_line(one, "train.py", 6)
        one.type("train.py", f"x = (\n{WORKER}")
        await until_on_line(one, "train.py", 6)
        one.type("train.py", "x = 1\n")
        await one.until(lambda codes: codes == {})

    in_an_editor(tmp_path, use)


def test_findings_stay_in_the_files_that_a_broken_one_calls(tmp_path):
    work, call = WORKER.split("\n\n\nresults")
    call = f"from joblib import Parallel, delayed\nfrom helpers import work\n\nresults{call}"
    (tmp_path / "helpers.py").write_text(work + "\n", "utf-8")
    (tmp_path / "train.py").write_text(call, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", f"x = (\n{call}")  # it has been Python on the disk
        one.open("helpers.py", f"x = 1\n{work}\n")
        await until_on_line(one, "helpers.py", 6)
        one.type("train.py", "x = 1\n")
        await one.until(lambda codes: codes == {})
        one.type("train.py", call)
        await until_on_line(one, "helpers.py", 6)
        one.type("train.py", f"{call})")
        one.type("helpers.py", f"x = 1\nx = 2\n{work}\n")
        await until_on_line(one, "helpers.py", 7)
        (tmp_path / "train.py").write_text("x = 1\n", "utf-8")
        one.close("train.py")  # what it was once does not count any more
        await one.until(lambda codes: codes == {})

    in_an_editor(tmp_path, use)


def test_a_file_that_is_not_written_yet_is_checked_and_an_older_version_of_one_is_not(tmp_path):
    (tmp_path / "train.py").write_text(WORKER, "utf-8")
    (tmp_path / "pyproject.toml").write_text("[tool.gradguard]\nexclude = ['old']\n", "utf-8")

    async def use(one: Editor) -> None:
        git = f"git:{one.uri('train.py').removeprefix('file:')}?HEAD"
        item = types.TextDocumentItem(git, "python", 1, "x = 1\n")
        one.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        one.open("old/new.py", WORKER)
        one.open("new.py", WORKER)
        one.open_notebook("new.ipynb", SETUP, WORK, CALL)
        names = ("train.py", "new.py", "new.ipynb#2")
        await one.until(lambda codes: codes == {name: ["GG201"] for name in names})

    in_an_editor(tmp_path, use)


def notebook(*cells: str) -> str:
    return json.dumps(
        {"nbformat": 4, "cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    )


def test_findings_of_a_notebook_are_in_its_cells(tmp_path):
    (tmp_path / "book.ipynb").write_text(notebook(SETUP, WORK, CALL), "utf-8")

    async def use(one: Editor) -> None:
        one.open_notebook("book.ipynb", SETUP, "", f"%%time\n'🐍'\n{WORK}", f"!ls\n{CALL}")
        await one.until(lambda codes: codes == {"book.ipynb#3": ["GG201"]})
        (found,) = one.published["book.ipynb#3"]
        assert (found.range.start, found.range.end) == (
            types.Position(3, 11),
            types.Position(3, 39),
        )
        step = found.related_information[0].location
        assert (step.uri, step.range.start.line) == (one.uri("book.ipynb#4"), 1)
        assert (await one.hover("book.ipynb#3", 3, 15)).startswith("**GG201 ")
        assert await one.hover("book.ipynb#4", 1, 15) is None
        one.type("book.ipynb#4", f"{CALL})")  # no Python: it is checked as it was
        one.type("book.ipynb#3", f"\n{WORK}")
        await until_on_line(one, "book.ipynb#3", 2)
        one.type("book.ipynb#4", "x = 1")
        await one.until(lambda codes: codes == {})
        one.type("book.ipynb#4", CALL)
        await until_on_line(one, "book.ipynb#3", 2)
        (found,) = one.published["book.ipynb#3"]
        ignore = (await one.actions("book.ipynb#3", found.range))["GG201: ignore on this line"]
        one.make(ignore.edit)
        assert one.texts["book.ipynb#3"] == f"\n{WORK}  # noqa: GG201"
        await one.until(lambda codes: codes == {})

    in_an_editor(tmp_path, use)


def test_cells_come_go_and_change_places(tmp_path):
    (tmp_path / "book.ipynb").write_text(notebook(), "utf-8")

    async def use(one: Editor) -> None:
        one.open_notebook("book.ipynb", SETUP, WORK)
        item = types.TextDocumentItem(one.uri("book.ipynb#9"), "python", 1, CALL)
        kind = types.NotebookCellKind.Code
        cells = [types.NotebookCell(kind, one.uri(f"book.ipynb#{k}")) for k in (1, 2)]
        last = types.NotebookCell(kind, item.uri)

        def restructure(array: types.NotebookCellArrayChange, **opened) -> None:
            structure = types.NotebookDocumentCellChangeStructure(array, **opened)
            one.change_cells("book.ipynb", types.NotebookDocumentCellChanges(structure))

        restructure(types.NotebookCellArrayChange(2, 0, [last]), did_open=[item])
        await one.until(lambda codes: codes == {"book.ipynb#2": ["GG201"]})
        restructure(types.NotebookCellArrayChange(0, 3, [cells[0], last, cells[1]]))
        await one.until(lambda codes: codes == {})  # the call comes before its function
        restructure(types.NotebookCellArrayChange(0, 3, [*cells, last]))
        await one.until(lambda codes: codes == {"book.ipynb#2": ["GG201"]})
        closed = [types.TextDocumentIdentifier(item.uri)]
        restructure(types.NotebookCellArrayChange(2, 1), did_close=closed)
        await one.until(lambda codes: codes == {})

    in_an_editor(tmp_path, use)


def test_findings_beside_notebooks_that_are_not_opened_and_after_they_are_closed(tmp_path):
    (tmp_path / "book.ipynb").write_text(notebook(SETUP, "import helpers", WORK, CALL), "utf-8")
    (tmp_path / "run.ipynb").write_text(notebook(SETUP, "from helpers import work", CALL), "utf-8")
    (tmp_path / "helpers.py").write_text(f"import torch\n\n\n{WORK}\n", "utf-8")

    async def use(one: Editor) -> None:
        await one.until(lambda codes: codes == {"helpers.py": ["GG201"]})
        one.open_notebook("book.ipynb", SETUP, WORK, CALL)
        await one.until(lambda codes: codes == {"helpers.py": ["GG201"], "book.ipynb#2": ["GG201"]})
        cells = [types.TextDocumentIdentifier(one.uri(f"book.ipynb#{k}")) for k in (1, 2, 3)]
        book = types.NotebookDocumentIdentifier(one.uri("book.ipynb"))
        one.client.notebook_document_did_close(types.DidCloseNotebookDocumentParams(book, cells))
        await one.until(lambda codes: codes == {"helpers.py": ["GG201"]})

    in_an_editor(tmp_path, use)


def test_all_safe_repairs_of_a_notebook_are_one_action_of_each_cell(tmp_path):
    (tmp_path / "book.ipynb").write_text(notebook(), "utf-8")

    async def use(one: Editor) -> None:
        one.open_notebook("book.ipynb", "x = 1", f"%%time\n{SAFE}", f"'🐍'\n{SAFE}")
        await one.until(lambda codes: len(codes) == 2)
        start = types.Range(types.Position(0, 0), types.Position(0, 0))
        assert not await one.actions("book.ipynb#1", start, ["source.fixAll"])
        (action,) = (await one.actions("book.ipynb#1", start, ["notebook.source.fixAll"])).values()
        action = await one.client.code_action_resolve_async(action)
        assert set(action.edit.changes) == {one.uri("book.ipynb#2"), one.uri("book.ipynb#3")}
        one.make(action.edit)
        await one.until(lambda codes: codes == {})
        assert one.texts["book.ipynb#1"] == "x = 1"
        assert one.texts["book.ipynb#2"].startswith("%%time\nimport joblib\n")
        assert "parallel_config" in one.texts["book.ipynb#3"]

    in_an_editor(tmp_path, use)


LOOPS = "".join(f"for x{n} in range(9):\n    x = [x{n}, x{n} + 1]\n" for n in range(40))


def large(folder: Path) -> int:
    """Write a project that takes seconds to read; the number of its files."""
    for number in range(60):
        text = WORKER.replace("results", f"{LOOPS}results{number}")
        (folder / f"train{number}.py").write_text(text, "utf-8")
    return 60


def test_progress_is_shown_while_a_large_project_is_read(tmp_path):
    files = large(tmp_path)

    async def use(one: Editor) -> None:
        await one.until(lambda codes: len(codes) == files)
        create, begin, *reports, end = one.progress
        assert {it.token for it in (begin, *reports, end)} == {create.token}
        assert (begin.value["kind"], begin.value["title"]) == ("begin", "Reading the project")
        assert {it.value["kind"] for it in reports} == {"report"}
        shares = [it.value["percentage"] for it in reports]
        assert shares == sorted(shares)
        assert re.fullmatch(rf"\d+ of {files} programs", reports[-1].value["message"])
        assert end.value["kind"] == "end"

    in_an_editor(tmp_path, use, shows_progress=True)


def test_clients_that_show_no_progress_hear_of_none(tmp_path):
    files = large(tmp_path)

    async def use(one: Editor) -> None:
        await one.until(lambda codes: len(codes) == files)
        assert not one.progress

    in_an_editor(tmp_path, use)
