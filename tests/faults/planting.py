"""Functions of the guard that raise: what is planted stands in one of them.

The guard's modules are compiled as ever, with one more statement at the beginning of one function:
so it raises for whoever calls it, by whichever name. Where a module is loaded already, its
functions are given that code: one process that has loaded all is forked once for each fault.
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

PACKAGE = "pytest_gradguard"
_PART = f"{os.sep}{PACKAGE}{os.sep}"
Function = ast.FunctionDef | ast.Lambda


class PlantedFault(Exception):
    """What the function raises."""


def fire(name: str) -> None:
    """Raise, unless it is called while a module of the guard's is imported."""
    if _importing(sys._getframe(1)):
        return
    note = os.environ.get("PLANTED_NOTES")
    if note:
        with open(note, "a", encoding="utf-8") as file:
            file.write(f"fired {os.getpid()}\n")
    raise PlantedFault(name)


def _importing(frame: Any) -> bool:
    """Whether a module of the guard's is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _PART in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, Function]]:
    """The functions in that tree, by their path in it."""
    seen: dict[str, int] = {}

    def walk(node: ast.AST) -> Iterator[tuple[str, Function]]:
        for one in ast.iter_child_nodes(node):
            if not isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
                yield from walk(one)
                continue
            name = "lambda" if isinstance(one, ast.Lambda) else one.name
            seen[name] = seen.get(name, 0) + 1
            path = f"{above}{name}" + (f"#{seen[name]}" * (seen[name] > 1))
            if not isinstance(one, ast.ClassDef):
                yield path, one
            yield from functions(one, f"{path}.")

    yield from walk(tree)


def _compiled(source: str, text: bytes | str, path: str = "", name: str = "") -> CodeType:
    """The code of a module of the guard's; with `path`, with one function that raises."""
    tree = ast.parse(text)
    if path:
        _raising(tree, path, name)
    code: CodeType = compile(tree, source, "exec", dont_inherit=True)
    return code


def _raising(tree: ast.Module, path: str, name: str) -> None:
    """Have the function at `path` in `tree` raise.

    Raises:
        LookupError: there is none.
    """
    target = dict(functions(tree)).get(path)
    if target is None:
        raise LookupError(path)
    call = ast.parse(f"__import__('planting').fire({name!r})", mode="eval").body
    if isinstance(target, ast.Lambda):
        target.body = ast.BoolOp(ast.Or(), [call, target.body])
    else:
        documented = ast.get_docstring(target) is not None
        target.body.insert(int(documented), ast.Expr(call))
    for node in ast.walk(call):
        ast.copy_location(node, target)
    ast.fix_missing_locations(target)


class _Loader(SourceFileLoader):
    path_in_it = ""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_filename(fullname)
        name = f"{fullname}:{self.path_in_it}"
        return _compiled(source, self.get_data(source), self.path_in_it, name)


class _Planter:
    """Loads one module of the guard's with a function that raises."""

    def __init__(self, module: str, path: str) -> None:
        self.module = module
        self.path = path

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(name, spec.origin)
        loader.path_in_it = self.path
        spec.loader = loader
        return spec


def plant(name: str, live: Live | None = None) -> None:
    """Have the function ``module:path`` raise, here or as soon as its module is imported.

    Args:
        name: which function.
        live: what is imported of the guard in this process.
    """
    module, _, path = name.partition(":")
    imported = sys.modules.get(module)
    if imported is None:
        sys.meta_path.insert(0, _Planter(module, path))
        return
    assert live is not None, f"{module} is imported already"
    assert imported.__file__ is not None
    live.plant(imported.__file__, path, name)


class Live:
    """The functions of the guard's that are loaded in this process, which can be made to raise."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, list[FunctionType]] = {}
        for one in gc.get_objects():
            if type(one) is FunctionType and _PART in one.__code__.co_filename:
                self._functions.setdefault(one.__code__, []).append(one)
                linecache.getlines(one.__code__.co_filename)

    def plant(self, source: str, path: str, name: str) -> None:
        """Have the function at `path` in the file `source` raise, and those that it stands in.

        Raises:
            LookupError: there is none.
        """
        text = "".join(linecache.getlines(source))
        pairs = _pairs(_compiled(source, text), _compiled(source, text, path, name))
        replaced = 0
        for before, after in pairs:
            for function in self._functions.get(before, ()) if before != after else ():
                function.__code__ = after
                replaced += 1
        if not replaced:
            raise LookupError(name)


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The codes inside of two that differ in one statement."""
    inside = (
        [one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after)
    )
    for one, other in zip(*inside, strict=True):
        yield one, other
        yield from _pairs(one, other)


# -- which functions are called -------------------------------------------------------------------


def name_of(path: str, line: int) -> str:
    """What the record calls the function that begins there."""
    return f"{path}:{line}"


def record(path: str) -> None:
    """Write which functions of the guard's are called from now on, here and in forked children."""
    import threading

    known: set[CodeType] = set()

    def look(frame: Any, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in known:
            ours = _PART in code.co_filename
            if ours and _importing(frame):
                return
            known.add(code)
            if ours:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(f"{name_of(code.co_filename, code.co_firstlineno)}\n")

    threading.setprofile(look)
    sys.setprofile(look)


def show_warnings(path: str) -> None:
    """Write all warnings of this process, and of its forked children, to a file."""
    import warnings

    def show(message: Any, category: Any, filename: Any, lineno: Any, *more: Any) -> None:
        text = " ".join(str(message).split())
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"warning {os.getpid()} {category.__name__} {text}\n")

    warnings.simplefilter("always")
    warnings.showwarning = show


def by_environment(live: Live | None = None) -> None:
    """Do here what the process that started this one does."""
    notes = os.environ.get("PLANTED_NOTES")
    if notes:
        show_warnings(notes)
    if os.environ.get("PLANTED_RECORD"):
        record(os.environ["PLANTED_RECORD"])
    if os.environ.get("PLANTED"):
        plant(os.environ["PLANTED"], live)
