"""Programs that are typed into IPython or a notebook: which cell a piece of code belongs to.

IPython is asked, never imported: without it there are no cells.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from typing import Any


def shell() -> Any:
    """The IPython shell of this process, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def execution_of(path: str) -> int | None:
    """The ``n`` of ``In [n]`` for code compiled under the file name `path`; None outside a cell."""
    if "IPython" not in sys.modules:
        return None
    label = getattr(getattr(shell(), "compile", None), "format_code_name", None)
    named = None if label is None else label(path)  # such as ("Cell", "In[3]")
    number = re.search(r"\d+", " ".join(named)) if named else None
    return None if number is None else int(number.group())


def cell_of(path: str) -> int | None:
    """The number of the cell that was compiled under the file name `path`, or None.

    It is the position among the code cells of the notebook's file, as `gradguard lint` counts them,
    where the file is known; otherwise the number of the execution.
    """
    number = execution_of(path)
    return None if number is None else _position(number) or number


def other_execution_of(path: str) -> int | None:
    """The number of the execution where it is not that of the cell (`cell_of`)."""
    number = execution_of(path)
    return None if number == cell_of(path) else number


def execution() -> int | None:
    """The number of the cell that runs now: a cell that runs again has another one."""
    return getattr(shell(), "execution_count", None)


def _position(number: int) -> int | None:
    """The position in the notebook's file of the cell that ran as ``In [number]``."""
    inputs = getattr(getattr(shell(), "history_manager", None), "input_hist_raw", ())
    path = _notebook()
    if path is None or not 0 < number < len(inputs):
        return None
    try:
        cells = _sources(path, os.stat(path).st_mtime_ns)
    except (OSError, ValueError):
        return None
    found = [place for place, text in enumerate(cells, 1) if text == inputs[number].strip()]
    return found[0] if len(found) == 1 else None


def _notebook() -> str | None:
    """The notebook's file, where Jupyter Server or VS Code names it."""
    named = getattr(shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    named = named or os.environ.get("JPY_SESSION_NAME")
    return named if isinstance(named, str) and named.endswith(".ipynb") else None


@functools.lru_cache(maxsize=1)
def _sources(path: str, modified: int) -> list[str]:
    """The source of each code cell that is not empty.

    Raises:
        OSError, ValueError: the file is not a notebook that can be read.
    """
    import json

    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    cells = whole.get("cells", ()) if isinstance(whole, dict) else ()
    code = [cell.get("source", "") for cell in cells if cell.get("cell_type") == "code"]
    return [text for text in (str("".join(source)).strip() for source in code) if text]


def sources() -> Iterator[tuple[str, str]]:
    """The file name and the Python source of each cell that has run, the latest first."""
    import linecache

    numbers = {path: execution_of(path) for path in list(linecache.cache)}
    cells = [(number, path) for path, number in numbers.items() if number is not None]
    for _, path in sorted(cells, reverse=True):
        yield path, "".join(linecache.getlines(path))
