"""Stubs of the user: files of ``stubs = [...]``, and ``[[models]]`` tables.

What a stub's names do is determined before anything runs: the byte search and the import graph need
to know which names may matter.
"""

from __future__ import annotations

import ast
import os
from functools import cache

from gradguard_lint.domain.values import PRIMITIVES
from gradguard_lint.models.rows import COMMON, Row, registry
from gradguard_lint.models.stub_files import Stub, bound_by, load, parsed, stubs_in
from gradguard_lint.reading.source import SourceError

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_DOES = {
    "hand_out": "pool",
    "run_here": "pool",
    "run_processes": "pool",
    "start_process": "pool",
    "load": "loader",
    "begins_order": "sampler",
    "gathered": "accelerator",
    "joins_group": "accelerator",
    "prepared": "accelerator",
    "backward": "trainer",
}
"""The category of stub code that calls a primitive; the first one counts."""

_BASES = {
    "pool": "multiprocessing.BasePool",
    "executor": "concurrent.futures.Executor",
    "process": "multiprocessing.BaseProcess",
}
_CLASS = """\
import {package}


class {name}({base}):
    _start = {start!r}
    _library = {module!r}
    _torch_pickles = False
"""
_SPAWN = """\
from gradguard_lint.models.primitives import rank, run_processes, task


def {name}(fn, args=(), nprocs=1, join=True, daemon=False, start_method={start!r}):
    ranked = task(fn, rank(), *args)
    run_processes(ranked, {module!r}, start_method, nprocs != 1, daemon, False)
"""


class StubError(Exception):
    """An unusable stub; the message is one line with the location and reason."""


def short_form(model: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows for a table ``[[tool.gradguard.models]]``."""
    does, start = model["does"], model.get("start")
    methods = dict(model.get("methods", ()))
    rows = []
    for full in model["name"]:
        module, _, name = full.rpartition(".")
        about = {"name": name, "module": module, "start": start}
        text = ""
        if does in _BASES:
            base = _BASES[does]
            text = _CLASS.format(base=base, package=base.rpartition(".")[0], **about)
            text += "".join(f"    {own} = {base}.{like}\n" for own, like in methods.items())
        elif does == "spawn":
            text = _SPAWN.format(**{**about, "start": start or "spawn"})
        stub = Stub(module, f"[[tool.gradguard.models]] {full}", text) if text else None
        rows.append(
            Row(full, does, start=start or "", methods=frozenset(methods) - COMMON, stub=stub)
        )
    return tuple(rows)


def rows_of_folder(folder: str) -> tuple[Row, ...]:
    """The rows for all definitions of the stubs in `folder`.

    Raises:
        StubError: one can't be read, or calls an unknown primitive.
    """
    if not os.path.isdir(folder):
        raise StubError(f"stubs: {folder!r} is not a folder")
    files = stubs_in(folder)
    return _rows_of_files(
        tuple((module, path, os.stat(path).st_mtime_ns) for module, path in files.items())
    )


@cache
def _rows_of_files(files: tuple[tuple[str, str, int], ...]) -> tuple[Row, ...]:
    """The rows for stub files: module, path and modification time."""
    stubs: list[Stub] = []
    for module, path, _ in files:
        try:
            with open(path, "rb") as stream:
                stub = Stub(module, path, stream.read().decode("utf-8", "replace"))
            tree = parsed(stub).tree
        except OSError as error:
            raise StubError(f"{path}: cannot be read: {error.strerror}") from None
        except SourceError as error:
            raise StubError(f"{path}:{error.line}: {error}") from None
        _check(tree, path)
        stubs.append(stub)
    known = _Stubs(stubs)
    return tuple(row for stub in stubs for row in known.rows(stub))


def _check(tree: ast.Module, path: str) -> None:
    """Reject names that aren't primitives."""
    from gradguard_lint.models.primitives import PRIMITIVES as KNOWN

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}." == PRIMITIVES:
            for alias in node.names:
                if PRIMITIVES + alias.name not in KNOWN:
                    names = ", ".join(sorted(name.rpartition(".")[2] for name in KNOWN))
                    said = f"there is no primitive {alias.name!r} (there are {names})"
                    raise StubError(f"{path}:{node.lineno}: {said}")


class _Stubs:
    """What the names of a folder's stubs do, with the known libraries."""

    def __init__(self, stubs: Iterable[Stub]) -> None:
        self._stubs = {stub.module: stub for stub in stubs}
        self._known = registry()
        self._contents: dict[str, tuple[dict[str, str], dict[str, ast.stmt]]] = {}

    def rows(self, stub: Stub) -> Iterator[Row]:
        """A row for each public name that a stub defines."""
        _, code = self._names_in(stub.module)
        for name, node in code.items():
            if name.startswith("_"):
                continue
            does = self.category(f"{stub.module}.{name}") or "stub"
            methods = set[str]()
            for part in node.body if isinstance(node, ast.ClassDef) and does == "pool" else ():
                methods.update(it for it in bound_by(part) if not it.startswith("_"))
            full = f"{stub.module}.{name}"
            yield Row(full, does, methods=frozenset(methods) - COMMON, stub=stub)

    def category(self, name: str, seen: frozenset[str] = frozenset()) -> str:
        """The category of `name`; "" if it doesn't matter before it runs."""
        if name.startswith(PRIMITIVES):
            return _DOES.get(name[len(PRIMITIVES) :], "")
        name = name if name.rpartition(".")[0] in self._stubs else self._known.canonical(name)
        module, _, own = name.rpartition(".")
        imports, code = self._names_in(module)
        if name in seen or own not in code:
            row = self._known.row(name)
            does = "" if row is None else row.does
            return "pool" if does in ("executor", "process", "spawn", "task") else does
        mentioned = set(_references(code[own], imports))
        for part in ast.walk(code[own]):
            if isinstance(part, ast.Name) and part.id in code:
                mentioned.add(f"{module}.{part.id}")
        found = {self.category(it, seen | {name}) for it in mentioned}
        return next((it for it in dict.fromkeys(_DOES.values()) if it in found), "")

    def _names_in(self, module: str) -> tuple[dict[str, str], dict[str, ast.stmt]]:
        """The imports of a module's stub with their full names, and the code of its definitions."""
        if module not in self._contents:
            stub, path = self._stubs.get(module), self._known.stubs.get(module)
            body: list[ast.stmt] = []
            if stub is not None:
                body = parsed(stub).tree.body
            elif path is not None:
                body = load(path, module).tree.body
            code = {name: node for node in body for name in bound_by(node)}
            self._contents[module] = dict(_imports(body)), code
        return self._contents[module]


def _imports(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The names that a stub imports, with their full names."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _references(node: ast.AST, imports: Mapping[str, str]) -> Iterator[str]:
    """The full names of imports that `node` mentions."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            written = ast.unparse(part)
            top, _, rest = written.partition(".")
            if top in imports:
                yield f"{imports[top]}.{rest}"
        elif isinstance(part, ast.Name) and part.id in imports:
            yield imports[part.id]
