"""Jupyter notebooks as source: their code cells one below the other, each line where it was.

What is no Python (magics, shell lines, cells in other languages) is blanked at equal length, so
that lines and columns stay. The format: https://nbformat.readthedocs.io/en/latest/format_description.html
"""

from __future__ import annotations

import io
import json
import re
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from gradguard_lint.reading.text import NOTEBOOK, TOO_DEEP, SourceError, compile_flags
from gradguard_lint.words import words

_AST_ONLY = 0x400

_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "memit", "mprun", "gradguard"})
"""The cell magics whose cells are Python."""
_TIMED = re.compile(r"%?(?:time|timeit|prun|memit)[ \t]+(?=[^-\s])")
"""A line magic that runs the statement after it."""
_AUTOMAGIC = re.compile(r"([\w.*]+)(?![\w.*]|[ \t]*[=,])")
"""The start of a line that IPython may take for a magic without its ``%``."""
_MAGICS = words(
    "alias alias_magic autoawait autocall automagic bookmark cat cd code_wrap colors conda config "
    "cp debug dhist dirs doctest_mode ed edit env gui hist history killbgscripts ldir lf lk ll "
    "load load_ext loadpy logoff logon logstart logstate logstop ls lsmagic lx macro magic mamba "
    "matplotlib micromamba mkdir mv notebook page pastebin pdb pdef pdoc pfile pinfo pinfo2 pip "
    "popd pprint precision prun psearch psource pushd pwd pycat pylab quickref recall rehashx "
    "reload_ext rep rerun reset reset_selective rm rmdir run save sc set_env sx system tb time "
    "timeit unalias unload_ext uv who who_ls whos xdel xmode"
)
"""IPython's line magics, and its aliases of shell commands."""
_CELL_MAGIC = re.compile(r"(?:[ \t\r\f]*(?:#[^\n]*)?\n)*[ \t]*%%(\S*)")
"""The start of a cell that is one magic: comments may precede it."""
_LINE = re.compile(r"[%!?]|[,;/](?=[A-Za-z_])")
"""The start of a line that is IPython syntax."""
_HELP = re.compile(r"[%\w.*\[\]'\"]+\?{1,2}[ \t]*$")
_ASSIGNED = re.compile(r"(?P<names>[\w.\[\], \t]+=[ \t]*)[%!]")
"""An assignment from a magic or a shell command."""


class Cell(NamedTuple):
    """One code cell.

    Attributes:
        number: which of the code cells that are not empty it is, counted from 1: the number that
            Jupyter gives it when it runs all.
        first: its first line in the notebook's source, counted from 1.
        text: its source, as it is stored.
        listed_at: its index in the file, among cells of all kinds.
        executed: the number that Jupyter shows at it, where that is another one.
    """

    number: int
    first: int
    text: str
    listed_at: int
    executed: int | None


class Notebook(NamedTuple):
    """A notebook's code.

    Attributes:
        source: Python, in UTF-8: the cells in their order.
        cells: where each stands in it.
        broken: cells that are no Python, with the line in them and the reason; `source` has blank
            lines there.
    """

    source: bytes
    cells: tuple[Cell, ...]
    broken: tuple[tuple[Cell, int, str], ...]

    def place(self, line: int) -> tuple[Cell, int]:
        """The cell of a line of the source, and its line in the cell."""
        index = bisect_right(self.cells, line, key=lambda cell: cell.first) - 1
        cell = self.cells[max(index, 0)]
        return cell, line - cell.first + 1


def read_notebook(data: bytes) -> Notebook:
    """The code in `data`; none where its kernel runs another language.

    Raises:
        SourceError: it is no notebook (of format 4).
    """
    cells: list[Cell] = []
    parts: list[str] = []
    broken: list[tuple[Cell, int, str]] = []
    line = 1
    for number, (index, text, count) in enumerate(_code_cells(_parsed(data)), 1):
        cell = Cell(number, line, text, index, None if count == number else count)
        cells.append(cell)
        python = _as_python(text)
        problem = _problem(python)
        if problem is not None:
            if _problem(_as_python(_without_indent(text))) is not None:
                broken.append((cell, *problem))
            python = _blank(python)
        parts.append(python)
        line += len(_lines(text))
    source = "\n".join(parts) + "\n"
    return Notebook(source.encode("utf-8", "replace"), tuple(cells), tuple(broken))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data)
    except UnicodeDecodeError:
        raise SourceError("is not a notebook: it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise SourceError(
            f"is not a notebook: it is not JSON ({error.msg})", error.lineno
        ) from None
    except RecursionError:
        raise SourceError("is not a notebook: it is nested too deeply") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("cells"), list):
        raise SourceError("is not a notebook of format 4: it has no list of cells")
    return whole


def _code_cells(notebook: dict[str, Any]) -> Iterator[tuple[int, str, int | None]]:
    """The index, the source and the stored execution count of each cell that Jupyter would run."""
    if _language(notebook) not in ("python", "ipython"):
        return
    for index, cell in enumerate(notebook["cells"]):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        count = cell.get("execution_count")
        if text.strip():
            yield index, text, count if type(count) is int and count > 0 else None


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    for section, key in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(section) if isinstance(metadata, dict) else None
        name = part.get(key) if isinstance(part, dict) else None
        if isinstance(name, str):
            return name.lower()
    return "python"


# -- one cell --------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return re.split(r"\r\n|\r|\n", text)


def _as_python(text: str) -> str:
    """The Python of a cell, with each character in its place."""
    magic = _CELL_MAGIC.match(text)
    if magic is not None:
        if magic[1] and magic[1] not in _PYTHON_CELLS:
            return _blank(text)
        head, end, rest = text[magic.start(1) :].partition("\n")
        return _blank(text[: magic.start(1)]) + " " * len(head) + end + _as_python(rest)
    if _problem(text) is None:
        return text
    single = _single(text)
    if single is not None and _automagic(single):
        timed = text.lstrip("\r\n").startswith(single) and _TIMED.match(single)
        return text.replace(single, _blanked(single), 1) if timed else _blank(text)
    kept: list[str] = []
    continued = False
    known = 0  # the number of lines that are whole statements
    for line in text.split("\n"):
        if continued:
            kept.append(_blank(line))
        elif _is_ours(line) and not _inside(kept[known:]):
            known = len(kept)
            kept.append(_blanked(line))
        else:
            kept.append(line)
            continue
        continued = line.rstrip().endswith("\\")
    return "\n".join(kept)


def _without_indent(text: str) -> str:
    """The cell as IPython runs it: without the indent of its first line, if it has one."""
    first = text.lstrip("\r\n")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in text.split("\n"))


def _single(text: str) -> str | None:
    """The only line of a cell, apart from empty ones at its ends."""
    bare = text.strip()
    return bare if bare and len(_lines(bare)) == 1 else None


def _automagic(line: str) -> bool:
    """Whether IPython takes the one line of a cell for a magic without its ``%``.

    It does so in cells of one line only, and where the line assigns nothing.
    """
    match = _AUTOMAGIC.match(line)
    return match is not None and match[1] in _MAGICS


def _is_ours(line: str) -> bool:
    """Whether `line`, which begins a statement, is IPython syntax."""
    bare = line.strip()
    return bool(_LINE.match(bare) or _HELP.fullmatch(bare) or _ASSIGNED.match(bare))


def _blanked(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    bare = line[len(indent) :]
    timed = _TIMED.match(bare)
    if timed is not None:  # the line may contain another statement
        return indent + "0;".ljust(timed.end()) + bare[timed.end() :]
    assigned = _ASSIGNED.match(bare)
    if assigned is not None and not _LINE.match(bare):
        start = assigned.end("names")
        return indent + bare[:start] + "_".ljust(len(bare) - start)  # the result may be anything
    return _pass(line)


def _pass(line: str) -> str:
    """A line as long as `line` that does nothing; it may be the only one of a block."""
    indent = line[: len(line) - len(line.lstrip())]
    room = len(line) - len(indent)
    return indent + ("pass" if room >= 4 else "0" if room else "").ljust(room)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _inside(lines: list[str]) -> bool:
    """Whether the line after `lines` is inside a string or brackets, or continues a line."""
    if lines and lines[-1].rstrip().endswith("\\"):
        return True
    bracketed = "\n".join(("(", *lines, ")"))  # in brackets, where the indents do not matter
    try:
        for _ in tokenize.generate_tokens(io.StringIO(bracketed).readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:  # an error elsewhere
        return False
    return False


def _problem(text: str) -> tuple[int, str] | None:
    """The line where `text` is not Python, and why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<cell>", "exec", _AST_ONLY | compile_flags(NOTEBOOK), dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, f"syntax error: {error.msg}"
    except (RecursionError, MemoryError):
        return 1, TOO_DEEP
    except (ValueError, UnicodeError) as error:
        return 1, f"cannot be decoded: {error}"
    return None
