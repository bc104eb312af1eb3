"""Functions of the guard that raise: what is planted stands in one of them as it is loaded.

The guard's modules are compiled as ever, with one more statement at the beginning of one function:
so it raises for whoever calls it, by whichever name.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType
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
        tree = ast.parse(self.get_data(source))
        _raising(tree, self.path_in_it, f"{fullname}:{self.path_in_it}")
        code: CodeType = compile(tree, source, "exec", dont_inherit=True)
        return code


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


def plant(name: str) -> None:
    """Have the function ``module:path`` raise, once its module is imported in this process."""
    module, _, path = name.partition(":")
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Planter(module, path))


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


def by_environment() -> None:
    """Do here what the process that started this one does."""
    notes = os.environ.get("PLANTED_NOTES")
    if notes:
        show_warnings(notes)
    if os.environ.get("PLANTED_RECORD"):
        record(os.environ["PLANTED_RECORD"])
    if os.environ.get("PLANTED"):
        plant(os.environ["PLANTED"])
