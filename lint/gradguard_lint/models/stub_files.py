"""Stub files of library modules: discovery and parsing.

A stub of the module ``torch.utils.data`` is the file ``torch/utils/data.py`` of a stub folder. The
engine runs it as a module of the program; see `gradguard_lint.engine.stub_calls`.
"""

from __future__ import annotations

import os
from functools import cache

from pytest_gradguard.records import Record, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast

    from gradguard_lint.reading.source import Module

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stubs")


def stubs_in(folder: str) -> dict[str, str]:
    """The stub files of a folder, by the full name of their module."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name.isidentifier())
        parts = [] if place == folder else os.path.relpath(place, folder).split(os.sep)
        for name in sorted(names):
            base, extension = os.path.splitext(name)
            if extension == ".py":
                own = parts if base == "__init__" else [*parts, base]
                found[".".join(own)] = os.path.join(place, name)
    return found


@record
class Stub(Record):
    """One stub: its module, its path in messages, and its text."""

    module: str
    path: str
    text: str


@cache
def load(path: str, module: str) -> Module:
    """The built-in stub of `module` in the file at `path`."""
    with open(path, encoding="utf-8") as stream:
        return parsed(Stub(module, path, stream.read()))


@cache
def parsed(stub: Stub) -> Module:
    """The parsed `stub`.

    Raises:
        SourceError: it isn't valid Python.
    """
    from gradguard_lint.reading.source import parse

    is_package = os.path.basename(stub.path) == "__init__.py"
    package = stub.module if is_package else stub.module.rpartition(".")[0]
    return parse(stub.text.encode(), stub.path, stub.module, package, is_stub=True)


def bound_by(node: ast.stmt) -> list[str]:
    """The names that a statement of a stub binds."""
    import ast

    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
