"""The files of a project: import roots, and each file read and parsed once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from gradguard_lint.engine.footprint import Footprint, Imported
from gradguard_lint.engine.walk import footprint
from gradguard_lint.models.rows import CALLED_BY_CALLS
from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.imports import dotted_names, import_lines, imported_names
from gradguard_lint.project.literals import with_line_feeds, without_comments
from gradguard_lint.project.marks import DECORATING, worth_following
from gradguard_lint.project.setting_up import sets_up
from gradguard_lint.reading.source import Module, SourceError, parse
from gradguard_lint.words import absolute_name, outermost_first

OUTSIDE = frozenset({"site-packages", "dist-packages", "node_modules"})


SMALL = 20_000
"""The size up to which modules are always followed."""


def package_root(path: str) -> tuple[str, str]:
    """The import root of `path`, and its dotted name from there."""
    folder, base = os.path.split(os.path.abspath(path))
    stem = base.removesuffix(".py").removesuffix(".ipynb")
    parts = [] if stem == "__init__" else [stem]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
        if not name:
            break
    return folder, ".".join(parts)


def is_project(folder: str) -> bool:
    """Whether `folder` has a project's settings or repository."""
    markers = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
    return any(os.path.exists(os.path.join(folder, marker)) for marker in markers)


def _found_at(base: str) -> str | None:
    if os.path.isfile(base + ".py"):
        return base + ".py"
    if not os.path.isdir(base):
        return None
    code = os.path.join(base, "__init__.py")
    return code if os.path.isfile(code) else base


class Reader:
    """Reads files once; None if a file can't be used.

    Args:
        tops: the folders given by the user and the current one, as absolute paths: import roots
            outside of projects.
    """

    def __init__(self, tops: Sequence[str] = ()) -> None:
        self.tops = tuple(dict.fromkeys(tops))
        self.known: dict[str, bytes | None] = {}
        self.modules: dict[tuple[str, str], Module | None] = {}
        self.summaries: dict[str, str] = {}
        self._projects: dict[str, str] = {}
        self._roots: dict[str, tuple[str, ...]] = {}
        self._around: dict[str, dict[str, str]] = {}
        self._found: dict[tuple[str, ...], tuple[str | None, str]] = {}
        self._imported: dict[str, list[Imported]] = {}
        self._imported_modules: dict[tuple[str, str], dict[str, None]] = {}
        self._setting_up: dict[str, bool] = {}
        self._decorators: dict[str, frozenset[tuple[str, bool]]] = {}
        self._worth_following: dict[str, bool] = {}
        self._footprints: dict[str, Footprint | None] = {}

    def project_of(self, folder: str) -> str:
        """The project folder around `folder`; `folder` if there is none."""
        return self.project_around(folder) or folder

    def project_around(self, folder: str) -> str:
        """The nearest project folder at or above `folder`; "" if there is none."""
        if folder not in self._projects:
            above = os.path.dirname(folder)
            around = "" if above == folder else self.project_around(above)
            self._projects[folder] = folder if is_project(folder) else around
        return self._projects[folder]

    def roots_around(self, folder: str) -> tuple[str, ...]:
        """The import roots around `folder`."""
        known = self._roots.get(folder)
        if known is None:
            project = self.project_around(folder)
            homes = [project] if project else (self._tops_around(folder) or [folder])
            known = self._roots[folder] = tuple(
                os.path.join(home, name) if name else home
                for home in homes
                for name in ("", "src", "lib")
            )
        return known

    def _tops_around(self, folder: str) -> list[str]:
        """The folders given by the user that contain `folder`."""
        within = folder + os.sep
        return [top for top in self.tops if within.startswith(os.path.join(top, ""))]

    def packages_around(self, root: str) -> Mapping[str, str]:
        """Namespace packages that modules of `root` may belong to: folder names up to the project
        or the outermost folder given by the user, each with its parent (the nearest for equal
        names)."""
        known = self._around.get(root)
        if known is None:
            tops = self._tops_around(root)
            last = self.project_around(root) or min(tops, key=len, default=root)
            known = self._around[root] = {}
            folder = root
            while folder:
                outer, name = os.path.split(folder)
                known.setdefault(name, outer)
                folder = outer if outer != folder and len(outer) >= len(last) else ""
        return known

    def found_in(self, root: str, *parts: str) -> tuple[str | None, str]:
        """The module, package or folder of that name below `root`, and the path without suffix."""
        key = (root, *parts)
        known = self._found.get(key)
        if known is None:
            base = os.path.join(root, *parts)
            known = self._found[key] = _found_at(base), base
        return known

    def over(self, contents: Mapping[str, bytes]) -> Reader:
        """A reader of the same files, with `contents` in place of some."""
        other = Reader(self.tops)
        other.known = {**self.known, **contents}
        other.modules = {
            key: module for key, module in self.modules.items() if key[0] not in contents
        }
        other._imported = {at: it for at, it in self._imported.items() if at not in contents}
        other._footprints = {at: it for at, it in self._footprints.items() if at not in contents}
        return other

    def imported(self, path: str, data: bytes) -> list[Imported]:
        """The imports of the module at `path`, from its bytes."""
        if path not in self._imported:
            self._imported[path] = imported_names(import_lines(with_line_feeds(data)))
        return self._imported[path]

    def imported_modules(self, path: str, data: bytes, package: str) -> Iterable[str]:
        """Full names of modules that the one at `path` imports, with their packages."""
        key = (path, package)
        if key not in self._imported_modules:
            imported = (
                absolute_name(it, package) for it in dotted_names(self.imported(path, data))
            )
            parts = (part for it in imported for part in outermost_first(it))
            self._imported_modules[key] = dict.fromkeys(parts)
        return self._imported_modules[key]

    def sets_up(self, path: str, data: bytes) -> bool:
        """Whether importing the module at `path` uses a GPU, or sets up workers."""
        if path not in self._setting_up:
            self._setting_up[path] = sets_up(data) and sets_up(without_comments(data))
        return self._setting_up[path]

    def decorators(self, path: str, data: bytes) -> frozenset[tuple[str, bool]]:
        """Decorator names of definitions at `path`, and whether each is a method of that name."""
        if path not in self._decorators:
            found = re.findall(DECORATING, data) if b"\n@" in data else ()
            self._decorators[path] = frozenset((os.fsdecode(it), bool(how)) for it, how in found)
        return self._decorators[path]

    def is_worth_following(self, path: str, data: bytes) -> bool:
        """Whether the module at `path` is small, or mentions something that is followed."""
        if path not in self._worth_following:
            self._worth_following[path] = len(data) <= SMALL or worth_following(data)
        return self._worth_following[path]

    def footprint(self, path: str, data: bytes, name: str, package: str) -> Footprint | None:
        """The footprint of the module at `path`; None if it isn't Python."""
        if path not in self._footprints:
            self._footprints[path] = None
            module = self.parsed(path, data, name, package)
            if module is not None:
                with suppress(RecursionError):
                    self._footprints[path] = footprint(module.tree, CALLED_BY_CALLS)
        return self._footprints[path]

    def parsed(self, path: str, data: bytes, name: str, package: str) -> Module | None:
        """The parsed module at `path`; None for syntax errors, which its own check reports."""
        key = (path, name)
        if key not in self.modules:
            try:
                self.modules[key] = parse(data, path, name, package)
            except SourceError:
                self.modules[key] = None
        return self.modules[key]

    def __call__(self, path: str) -> bytes | None:
        if path not in self.known:
            try:
                self.known[path] = read(path)
            except Unusable:
                self.known[path] = None
        return self.known[path]
