"""Imports between project files, and what the imported names lead to."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from gradguard_lint.project.file_bytes import File
from gradguard_lint.words import absolute_name

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.ports import What
    from gradguard_lint.project.modules import Modules
    from gradguard_lint.project.reader import Reader

PACKAGES = 1
"""The depth of nested packages whose re-exports are followed."""


class Links:
    """The checked files, and the modules of their project.

    Attributes:
        files: the checked files, by path.
    """

    def __init__(
        self, contents: Mapping[str, bytes], tops: Sequence[str], starters: frozenset[str]
    ) -> None:
        """Link `contents`; `tops` as for `Reader`, `starters` as for `Modules`."""
        self.files = {path: File(data) for path, data in contents.items()}
        self._contents = contents
        self._tops = tops
        self._starters = starters
        self._modules: dict[str, Modules] = {}
        """By package folder, as its files resolve imports equally; by path for other files."""
        self._last: tuple[str, Modules] | None = None
        self._others: dict[str, File] = {}
        self._paths: dict[File, str] = {}
        self._followed: dict[tuple[Modules, str], tuple[str, File] | None] = {}
        self._imported: dict[str, list[File]] = {}
        self._given: dict[tuple[str, int], list[File]] = {}

    @cached_property
    def read(self) -> Reader:
        """The reader of files, created on first use."""
        from gradguard_lint.project.reader import Reader

        made = Reader(self._tops)
        made.known.update((os.path.abspath(path), it) for path, it in self._contents.items())
        return made

    def path_of(self, file: File) -> str:
        """The path of an imported module."""
        return self._paths[file]

    def followed(self, name: str, path: str) -> tuple[str, File] | None:
        """The module that `path` imports as `name`, with its path."""
        modules = self._modules_of(path)
        key = (modules, name)
        if key not in self._followed:
            found = modules.path_of(absolute_name(name, modules.package))
            self._followed[key] = self._module_at(found, modules)
        return self._followed[key]

    def _module_at(self, path: str | None, modules: Modules) -> tuple[str, File] | None:
        data = modules.read(path) if path is not None and path.endswith(".py") else None
        if path is None or data is None:
            return None
        file = self.files.get(path) or self._others.get(path)
        if file is None:
            file = self._others[path] = File(data)
        self._paths[file] = path
        return path, file

    def _modules_of(self, path: str) -> Modules:
        """The resolver of imports in `path`."""
        if self._last is None or path != self._last[0]:
            folder = os.path.dirname(path)
            known = self._modules.get(folder) or self._modules.get(path)
            self._last = path, known or self._made_for(path, folder)
        return self._last[1]

    def _made_for(self, path: str, folder: str) -> Modules:
        from gradguard_lint.project.modules import Modules

        made = Modules(path, self.read, self._starters)
        self._modules[folder if made.package else path] = made
        return made

    def imported(self, path: str) -> list[File]:
        """Project modules that `path` imports, with re-exports of packages."""
        if path not in self._imported:
            named = dict.fromkeys(self.followed(it, path) for it in self._file(path).imports)
            found: dict[File, None] = {}
            for path_of, _ in filter(None, named):
                found.update(dict.fromkeys(self._reexports_of(path_of, self._modules_of(path))))
            self._imported[path] = [*found]
        return self._imported[path]

    def reaches(
        self, path: str, what: What, wanted: Callable[[File], bool], through: int = 0
    ) -> bool:
        """Whether `path` imports `wanted` modules, and a name used from them (or their import) does
        this, directly or through at most `through` other modules."""
        if not any(map(wanted, self.imported(path))):
            return False
        modules = self._modules_of(path)

        def given(module: str) -> bool:
            return any(map(wanted, self._reexports_of(modules.path_of(module), modules)))

        for module, name in dict.fromkeys(self._used_names(path, modules)):
            if not given(module):
                continue
            origin = modules.origin(f"{module}.{name}") if name else None
            if origin is not None:
                module, _, name = origin.rpartition(".")
            far = through * (1 + PACKAGES)
            far += PACKAGES if name != "" and modules.holds_modules(module) else 0
            if given(module) and modules.reaches(what, module, name, (far, through)):
                return True
        return False

    def _reexports_of(self, path: str | None, modules: Modules) -> list[File]:
        """The module at `path`, with its re-exports if it is a package."""
        found = self._module_at(path, modules)
        if found is None:
            return []
        given = self._imported_by_package(*found) if found[0].endswith("__init__.py") else ()
        return [found[1], *given]

    def behind(self, path: str, depth: int) -> Iterator[File]:
        """Modules behind the names that `path` imports, at most `depth` imports away."""
        modules = self._modules_of(path)
        found = (modules.behind(*item, depth) for item in self._used_names(path, modules))
        for other in dict.fromkeys(it for of_item in found for it in of_item):
            module = self._module_at(other, modules)
            if module is not None:
                yield module[1]

    def _used_names(self, path: str, modules: Modules) -> Iterator[tuple[str, str | None]]:
        """The module and name of each use of an imported project module; None for any name, "" for
        the import itself."""
        file = self._file(path)
        for base, name, here in file.imported_names:
            module = absolute_name(base, modules.package)
            if not modules.is_module(module):
                continue
            yield module, ""
            if name == "*":
                yield module, None
            elif name and not modules.is_inner(module, name):
                yield module, name
            else:
                inner = f"{module}.{name}" if name else module
                taken = file.names_used_of(here)
                if taken is None:
                    yield inner, None
                top = not name and here == module.partition(".")[0]
                for it in taken or ():
                    yield _innermost(modules, here if top else inner, it.split("."))

    def importers(self, paths: Collection[str]) -> list[str]:
        """Checked files that import one of `paths`, also transitively, nearest first."""
        wanted = {os.path.abspath(path) for path in paths}
        found: dict[str, None] = {}
        while wanted:
            names = {module_name(path) for path in wanted}
            names |= {module_name(os.path.dirname(path)) for path in wanted}
            near = [
                path
                for path, file in self.files.items()
                if path not in found
                and not names.isdisjoint(file.words)
                and any(
                    os.path.abspath(self._paths[other]) in wanted for other in self.imported(path)
                )
            ]
            found.update(dict.fromkeys(near))
            wanted = set(map(os.path.abspath, near))
        return list(found)

    def _file(self, path: str) -> File:
        return self.files.get(path) or self._others[path]

    def _imported_by_package(self, path: str, package: File, depth: int = PACKAGES) -> list[File]:
        """Modules that a package imports, including those of nested packages."""
        known = self._given.get((path, depth))
        if known is None:
            known = self._given[path, depth] = []
            for name in package.imports:
                other = self.followed(name, path)
                if other is None:
                    continue
                known.append(other[1])
                if depth and other[0] != path and other[0].endswith("__init__.py"):
                    known += self._imported_by_package(*other, depth - 1)
        return known


def _innermost(modules: Modules, module: str, parts: list[str]) -> tuple[str, str]:
    """The module, and the name in it, that the dotted `parts` mean in `module`."""
    for name in parts:
        if not modules.is_inner(module, name):
            return module, name
        module = f"{module}.{name}"
    return module, ""


def module_name(path: str) -> bytes:
    """The last part of the name of the module at `path`."""
    folder, name = os.path.split(path)
    if name == "__init__.py":
        name = os.path.basename(os.path.abspath(folder))
    return os.fsencode(name.removesuffix(".py"))
