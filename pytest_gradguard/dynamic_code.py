"""Functions that were pickled by value, and cannot say in their worker where they were written.

Their globals know the file (`callsite.written_in`), unless they are of a notebook or of a prompt.
Then the code itself is recognised in the process that they came from.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Iterator
from types import CodeType, FunctionType

from pytest_gradguard import interactive

DYNAMIC = "<dynamic-code>"
"""The file name that cloudpickle, from 3.1.3 on, gives to functions that it pickles by value."""
_IDENTIFIED = DYNAMIC.removesuffix(">") + " "
"""How the names begin that `identified` gives."""


@functools.lru_cache(maxsize=256)
def identified(code: CodeType) -> str:
    """The name for the file of `code` by which `file_named` finds it."""
    name = getattr(code, "co_qualname", code.co_name)
    values = [const for const in code.co_consts if isinstance(const, (str, int, float))]
    content = repr((code.co_code, code.co_names, code.co_varnames, values)).encode()
    return f"{_IDENTIFIED}{name}:{code.co_firstlineno}:{zlib.crc32(content):08x}>"


def file_named(path: str) -> str:
    """The file of the code that a worker has `identified` by `path`; any other path unchanged.

    `DYNAMIC` where the code is not found in this process.
    """
    if not path.startswith(_IDENTIFIED):
        return path
    for code in _typed_in():
        if identified(code) == path:
            return code.co_filename
    return DYNAMIC


def _typed_in() -> Iterator[CodeType]:
    """The code of what stands in ``__main__``, then of all cells, the latest first."""
    main = vars(sys.modules["__main__"])
    held = list(main.values())
    held += [one for cls in held if issubclass(type(cls), type) for one in vars(cls).values()]
    yield from _nested([one.__code__ for one in held if type(one) is FunctionType])
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            yield from _nested([frame.f_code])
    for path, source in interactive.sources():
        code = _compiled(path, source)
        if code is not None:
            yield from _nested([code])


@functools.lru_cache(maxsize=256)
def _compiled(path: str, source: str) -> CodeType | None:
    import ast
    import warnings

    flags = interactive.shell().compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code: CodeType = compile(source, path, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return code


def _nested(codes: list[CodeType]) -> Iterator[CodeType]:
    while codes:
        code = codes.pop()
        yield code
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
