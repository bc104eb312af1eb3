"""What a run of the linter found, with its notebooks."""

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
    """What a run found, as plain data, and what it could not use.

    Attributes:
        findings: everything that was found, whatever the configuration selects.
        errors: what could not be used.
        warnings: what was used otherwise than it was perhaps meant.
        files: how many files were checked; of a notebook, some cells may not be.
        read: how many of them were read as programs.
        not_for_info: how many of them were not searched for findings of severity info.
        left_out: how many of the paths that were named are excluded.
        cut: the functions that a budget cut off, each once, with the reason; sorted.
        configurations: those of the files that were checked.
        notebooks: those that were checked, by path.
        contents: the source of what was checked, by absolute path.
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
        """Replace the notebooks in `contents` by their code; a broken cell is an error.

        Args:
            contents: the source of files, by path.
            over: what notebooks hold instead of what was read, by absolute path.
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
        """Count lines in notebooks by their cells, once the last repair is made."""
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
