"""Stub files: which modules of libraries have one, and its program.

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
    """The stub files of a folder, by the full names of the modules that they describe."""
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
    """One stub: the module that it describes, the path that errors name, and its text."""

    module: str
    path: str
    text: str


@cache
def load(path: str, module: str) -> Module:
    """The stub of `module` that the file at `path` holds; one of ours can be read."""
    with open(path, encoding="utf-8") as stream:
        return parsed(Stub(module, path, stream.read()))


@cache
def parsed(stub: Stub) -> Module:
    """The program of `stub`.

    Raises:
        SourceError: it is not Python that can be read.
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
