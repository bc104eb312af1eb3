"""Programs that are typed into IPython or a notebook: which cell a piece of code belongs to.

IPython is asked, never imported: without it there are no cells.
"""

from __future__ import annotations

import re
import sys
from typing import Any


def _shell() -> Any:
    """The IPython shell of this process, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def cell_of(path: str) -> int | None:
    """The number of the cell that was compiled under the file name `path`, or None."""
    if "IPython" not in sys.modules:
        return None
    label = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    named = None if label is None else label(path)  # such as ("Cell", "In[3]")
    number = re.search(r"\d+", " ".join(named)) if named else None
    return None if number is None else int(number.group())


def execution() -> int | None:
    """The number of the cell that runs now: a cell that runs again has another one."""
    return getattr(_shell(), "execution_count", None)
