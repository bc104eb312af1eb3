"""Replace source in a notebook's cells; outputs, metadata and layout stay the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gradguard_lint.fixes.changes import Unwritable
from gradguard_lint.fixes.edits import RawEdit, between, edited, lines_of
from gradguard_lint.reading.notebooks import Cell, Notebook, read_notebook
from gradguard_lint.reading.text import SourceError


def source_of(data: bytes) -> bytes | None:
    """The Python source of the notebook in `data`; None if it is no notebook."""
    try:
        return read_notebook(data).source
    except SourceError:
        return None


def with_source(data: bytes, source: bytes) -> bytes:
    """The notebook in `data` with the cells changed so that its Python is `source`.

    Raises:
        Unwritable: a change concerns several cells, or the file is not laid out as Jupyter does it.
    """
    write = _layout(data, json.loads(data))
    return write(_whole(data, source))


def repaired(data: bytes, source: bytes) -> Notebook:
    """The same, as it is read.

    Raises:
        Unwritable: a change concerns several cells, or what is no Python in one.
    """
    notebook = read_notebook(json.dumps(_whole(data, source)).encode())
    if notebook.source != source:
        raise Unwritable("the change concerns what is no Python")
    return notebook


def _whole(data: bytes, source: bytes) -> Any:
    whole = json.loads(data)
    for changed_cell, text in changed(data, source):
        cell = whole["cells"][changed_cell.listed_at]
        if isinstance(cell["source"], list):
            cell["source"] = [line for line in lines_of(text) if line]
        else:
            cell["source"] = text
    return whole


def changed(data: bytes, source: bytes) -> Iterator[tuple[Cell, str]]:
    """The cells that differ once the Python of the notebook in `data` is `source`.

    Each comes with what its text becomes.

    Raises:
        Unwritable: a change concerns several cells.
    """
    notebook = read_notebook(data)
    by_cell: dict[int, list[RawEdit]] = {}
    for edit in between("", notebook.source.decode(), source.decode()):
        cell, line = notebook.place(edit["line"])
        last, end_line = notebook.place(edit["end_line"])
        if cell is not last:
            raise Unwritable("the change concerns several cells")
        by_cell.setdefault(cell.number, []).append({**edit, "line": line, "end_line": end_line})
    for cell in notebook.cells:
        if cell.number in by_cell:
            yield cell, edited(cell.text, by_cell[cell.number])


class _layout:
    """The JSON format of the file, so that only the source of cells changes."""

    def __init__(self, data: bytes, whole: Any) -> None:
        self.end = data[len(data.rstrip()) :]
        for indent in (1, 2, 4, None, "\t", 0, 3):
            for ascii_only in (False, True):
                self.options: dict[str, Any] = {"indent": indent, "ensure_ascii": ascii_only}
                if self(whole) == data:
                    return
        raise Unwritable("its JSON is not formatted as Jupyter writes it (open and save it there)")

    def __call__(self, whole: Any) -> bytes:
        return json.dumps(whole, **self.options).encode("utf-8", "surrogatepass") + self.end
