"""Whether a function may return a leaf tensor that requires grad, judged by its code.

If not, a tensor that requires grad among its results has a graph, or is one of its arguments.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.kernel import used_globals
from pytest_gradguard.runtime.kernel.tasks import code_of

WORD = "requires_grad"
_MAKERS = frozenset({WORD, "requires_grad_", "Variable", "deepcopy", "load", "loads"})
_FUNCTIONS = 100
_known: dict[types.CodeType, bool] = {}


def may_make_leaves(function: Any) -> bool:
    """Whether `function`, or user code that it calls, may make such a tensor.

    True if its code is not the user's.
    """
    code = code_of(function)
    if code is None:
        return True
    if code not in _known:
        _known[code] = _may(function)
    return _known[code]


def _may(function: Any) -> bool:
    seen: set[int] = set()
    queue = [function]
    found = False
    while queue:
        for inner in used_globals.uses_of(queue.pop(), classes=True).functions:
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            found = True
            if len(seen) > _FUNCTIONS or not _MAKERS.isdisjoint(_words_of(inner.__code__)):
                return True
            queue += _closed_over(inner)
    return not found


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            if callable(cell.cell_contents):
                yield cell.cell_contents
        except ValueError:  # an empty cell
            pass


def _words_of(code: types.CodeType) -> Iterator[str]:
    """The names, the keywords of calls and the string constants in `code`."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _words_of(constant)
        for word in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(word, str):
                yield word
