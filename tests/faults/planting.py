"""Faults in functions of the guard.

The guard's modules are compiled as ever, with one more statement in one function: so it stands in
its way for all that the guard calls it from, by whichever name. Where a module is loaded already,
its functions are given that code: one process that has loaded all is forked once for each fault.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import gc
import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType, FunctionType
from typing import Any, NamedTuple

PACKAGE = "pytest_gradguard"
_PART = f"{os.sep}{PACKAGE}{os.sep}"
Function = ast.FunctionDef | ast.Lambda


KINDS = (
    *("raise", "late"),
    *("MemoryError", "RecursionError", "AttributeError", "TypeError", "KeyError", "OSError"),
    *("StopIteration", "ImportError", "AssertionError"),
)
"""What a function does: it raises at its beginning, or once its work is done; or it raises an error
that other code may have raised, and may catch."""
PLANTED = "planted in"
"""What the message of each error that is planted begins with."""

_TRANSPARENT = {contextlib.__file__, dataclasses.__file__, functools.__file__, "<string>"}
"""Where what a function calls is called for it: generators of contexts, constructors."""


class PlantedFault(Exception):
    """What the function raises."""


class Fault(NamedTuple):
    """What is planted.

    Attributes:
        function: where, as ``module:path``.
        kind: one of `KINDS`.
    """

    function: str
    kind: str = "raise"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """That which is written so."""
        return cls(*text.split())

    def __str__(self) -> str:
        return f"{self.function} {self.kind}"


def caller(frame: Any) -> Any:
    """The frame of the guard's own that calls that one; None where others do.

    What others call themselves is a door: whether that is the program, a library or Python, nobody
    could take what it raises at once.
    """
    above = frame.f_back
    while above is not None and above.f_code.co_filename in _TRANSPARENT:
        above = above.f_back
    return above if above is not None and _PART in above.f_code.co_filename else None


_noted = 0
"""The process that has noted that the fault took place."""


def fire(fault: str) -> None:
    """Raise, if the fault takes place where it stands.

    It does not where others call that function, nor while a module of the guard's is imported.
    """
    global _noted
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    above = caller(frame)
    if above is None or _importing(above):
        return
    note = os.environ.get("PLANTED_NOTES")
    if note and _noted != os.getpid():
        _noted = os.getpid()
        with open(note, "a", encoding="utf-8") as file:
            file.write(f"fired {os.getpid()}\n")
    name, kind = Fault.parse(fault)
    raise getattr(builtins, kind, PlantedFault)(f"{PLANTED} {name}")


def late(fault: str, value: Any) -> Any:
    """Raise, if it takes place, where `value` would be returned."""
    fire(fault)
    return value


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


def _compiled(source: str, text: bytes | str, path: str = "", fault: str = "") -> CodeType:
    """The code of a module of the guard's; with `path`, with a fault in one function."""
    tree = ast.parse(text)
    if path:
        _plant(tree, path, fault)
    code: CodeType = compile(tree, source, "exec", dont_inherit=True)
    return code


def _plant(tree: ast.Module, path: str, fault: str) -> None:
    """Plant a fault in the function at `path` in `tree`.

    Raises:
        LookupError: there is none.
    """
    target = dict(functions(tree)).get(path)
    if target is None:
        raise LookupError(path)
    if Fault.parse(fault).kind == "late":
        _Late(fault).visit_in(target)
    elif isinstance(target, ast.Lambda):
        target.body = ast.BoolOp(ast.Or(), [_call("fire", fault), target.body])
    else:
        first = ast.Expr(_call("fire", fault))
        target.body.insert(int(ast.get_docstring(target) is not None), first)
    line = target.lineno
    ast.fix_missing_locations(tree)
    assert target.lineno == line


def _call(function: str, *args: str, value: ast.expr | None = None) -> ast.expr:
    """A call of a function of this module."""
    given = "".join(f"{arg!r}, " for arg in args)
    call = ast.parse(f"__import__({__name__!r}).{function}({given})", mode="eval").body
    assert isinstance(call, ast.Call)
    if value is not None:
        call.args.append(value)
    for node in ast.walk(call):
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            node.__dict__.pop(name, None)  # those of where it will stand
    return call


class _Late(ast.NodeTransformer):
    """Has a function raise where it would return."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def visit_in(self, target: Function) -> None:
        """Change `target`, and no function that stands in it."""
        if isinstance(target, ast.Lambda):
            target.body = _call("late", self._fault, value=target.body)
            return
        self.generic_visit(target)
        target.body.append(ast.Expr(_call("fire", self._fault)))

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Return(_call("late", self._fault, value=value)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node


class _Loader(SourceFileLoader):
    path_in_it = ""
    fault = ""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_filename(fullname)
        return _compiled(source, self.get_data(source), self.path_in_it, self.fault)


class _Planter:
    """Loads one module of the guard's with a fault in a function."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.module, _, self.path = Fault.parse(fault).function.partition(":")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(name, spec.origin)
        loader.path_in_it, loader.fault = self.path, self.fault
        spec.loader = loader
        return spec


def plant(fault: str, live: Live | None = None) -> None:
    """Plant a fault here, or as soon as its module is imported.

    Args:
        fault: a `Fault`, written.
        live: what is imported of the guard in this process.
    """
    module, _, path = Fault.parse(fault).function.partition(":")
    imported = sys.modules.get(module)
    if imported is None:
        sys.meta_path.insert(0, _Planter(fault))
        return
    assert live is not None, f"{module} is imported already"
    assert imported.__file__ is not None
    live.plant(imported.__file__, path, fault)


class Live:
    """The functions of a package that are loaded in this process, which can be given other code."""

    def __init__(self, part: str = _PART) -> None:
        self._functions: dict[CodeType, list[FunctionType]] = {}
        for one in gc.get_objects():
            if type(one) is FunctionType and part in one.__code__.co_filename:
                self._functions.setdefault(one.__code__, []).append(one)
                linecache.getlines(one.__code__.co_filename)

    def plant(self, source: str, path: str, fault: str) -> None:
        """Plant a fault in the function at `path` in the file `source`.

        Raises:
            LookupError: there is none.
        """
        text = "".join(linecache.getlines(source))
        changed = self.changed(_compiled(source, text), _compiled(source, text, path, fault))
        if not changed:
            raise LookupError(fault)
        for function, code in changed:
            function.__code__ = code

    def changed(self, before: CodeType, after: CodeType) -> list[tuple[FunctionType, CodeType]]:
        """The functions of a module whose code differs if it is compiled as `after`, with that."""
        return [
            (function, new)
            for old, new in _pairs(before, after)
            if old != new
            for function in self._functions.get(old, ())
        ]


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The codes inside of two that differ in one statement, by name and line."""
    changed: defaultdict[tuple[str, int], list[CodeType]] = defaultdict(list)
    for one in after.co_consts:
        if isinstance(one, CodeType):
            changed[one.co_name, one.co_firstlineno].append(one)
    for one in before.co_consts:
        if isinstance(one, CodeType) and (alike := changed[one.co_name, one.co_firstlineno]):
            other = alike.pop(0)
            yield one, other
            yield from _pairs(one, other)


# -- which functions are called -------------------------------------------------------------------


def name_of(path: str, line: int) -> str:
    """What the record calls the function that begins there."""
    return f"{path}:{line}"


def record(path: str) -> None:
    """Write which functions of the guard's are called from now on, here and in forked children.

    Each with the function of the guard's that calls it, and with the door: the first one on the
    way, which others call.
    """
    import threading

    ours: dict[CodeType, bool] = {}
    known: set[tuple[CodeType, ...]] = set()

    def look(frame: Any, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in ours:
            ours[code] = _PART in code.co_filename and code.co_name != "<module>"
        if not ours[code]:
            return
        above = door = caller(frame)
        if above is None:
            return
        while (further := caller(door)) is not None:
            door = further
        way = (code, above.f_code, door.f_code)
        if way not in known and not _importing(frame):
            known.add(way)
            names = "\t".join(name_of(one.co_filename, one.co_firstlineno) for one in way)
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{names}\n")

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
