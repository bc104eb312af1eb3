"""The outcome of a run, with its notebooks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gradguard_lint.project.files import Trouble, absolute

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.project.configuration import Configuration
    from gradguard_lint.raw import Raw
    from gradguard_lint.reading.notebooks import Notebook


class Outcome:
    """Findings of a run as plain data, with errors and warnings.

    Attributes:
        findings: all findings, whatever the configuration selects.
        errors: unusable files and settings.
        warnings: input that may not have the intended meaning.
        files: the number of checked files; some cells of a notebook may be unchecked.
        read: the number of files that were read as programs.
        not_for_info: the number of files not searched for info findings.
        left_out: the number of given paths that are excluded.
        cut: the functions that a budget cut off, sorted, each once with the reason.
        configurations: the configurations of checked files.
        notebooks: the checked notebooks, by path.
        contents: the source of checked files, by absolute path.
    """

    def __init__(self) -> None:
        self.findings: list[Raw] = []
        self.errors: list[Trouble] = []
        self.warnings: list[Trouble] = []
        self.files = 0
        self.read = 0
        self.not_for_info = 0
        self.left_out = 0
        self.cut: list[dict[str, Any]] = []
        self.configurations: list[Configuration] = []
        self.notebooks: dict[str, Notebook] = {}
        self.contents: dict[str, bytes] = {}

    def read_notebooks(self, contents: dict[str, bytes], over: Mapping[str, bytes]) -> None:
        """Replace notebooks in `contents` by their code; a broken cell is an error.

        Args:
            contents: the source of files, by path.
            over: overrides of notebooks' code, by absolute path.
        """
        for path in [path for path in contents if path.endswith(".ipynb")]:
            from gradguard_lint.fixes.changes import Unwritable
            from gradguard_lint.reading.notebooks import read_notebook
            from gradguard_lint.reading.text import SourceError

            data = contents.pop(path)
            source = over.get(absolute(path))
            try:
                if source is None:
                    notebook = read_notebook(data)
                else:
                    from gradguard_lint.fixes.cells import repaired

                    notebook = repaired(data, source)
            except SourceError as error:
                self.errors.append(Trouble(path, error.line, str(error)))
                continue
            except Unwritable as error:
                self.errors.append(Trouble(path, 1, str(error)))
                continue
            self.notebooks[path] = notebook
            contents[path] = notebook.source
            self.errors += [
                Trouble(path, cell.first + line - 1, why) for cell, line, why in notebook.broken
            ]

    def place_in_cells(self) -> None:
        """Convert lines in notebooks to lines in cells, after the last repair."""
        if not self.notebooks:
            return
        known = {**self.notebooks}
        known |= {os.path.abspath(path): notebook for path, notebook in known.items()}

        def placed(trouble: Trouble) -> Trouble:
            if trouble.path not in known or not known[trouble.path].cells:
                return trouble
            cell, line = known[trouble.path].place(trouble.line)
            return Trouble(trouble.path, line, trouble.message, cell.number)

        def in_cell(path: str, line: int) -> dict[str, int]:
            if path not in known:
                return {}
            cell, line = known[path].place(line)
            return {"line": line, "cell": cell.number}

        self.errors = list(map(placed, self.errors))
        self.warnings = list(map(placed, self.warnings))
        from gradguard_lint.raw import everywhere

        for cut in self.cut:
            cut |= in_cell(cut["path"], cut["line"])
        for raw in everywhere(self.findings):
            length = raw["end_line"] - raw["line"]
            if raw["path"] in known:
                raw["executed"] = known[raw["path"]].place(raw["line"])[0].executed
            raw |= in_cell(raw["path"], raw["line"])
            raw["end_line"] = raw["line"] + length
            raw["trace"] = [
                (path, place.get("line", line), message, place.get("cell"))
                for path, line, message in raw["trace"]
                for place in [in_cell(path, line)]
            ]
            details = raw["details"]
            for place in (details.get("handed_out_at"), *details.get("also_from", ())):
                if place is not None:
                    place |= in_cell(place["path"], place["line"])
            for edit in raw["edits"]["edits"] if raw["edits"] is not None else ():
                length = edit["end_line"] - edit["line"]
                edit |= in_cell(edit["path"], edit["line"])
                edit["end_line"] = edit["line"] + length
