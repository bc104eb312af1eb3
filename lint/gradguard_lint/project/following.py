"""Which file of the project an import leads to, for the byte search."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader
from gradguard_lint.words import absolute_name

_Finding = tuple[Modules, dict[str, tuple[str, bytes] | None]]
"""What finds modules, and what it has found."""


class Following:
    """Finds the modules that a file imports, among the files of the project.

    Args:
        contents: what is checked, by path.
        tops: as for `Reader`.
    """

    def __init__(self, contents: dict[str, bytes], tops: Sequence[str] = ()) -> None:
        self._read = Reader(tops)
        for path, data in contents.items():
            self._read.known[os.path.abspath(path)] = data
        self._modules: dict[str, _Finding] = {}
        """By the folder of a package, whose files find the same; by the file, where it is none."""
        self._last: tuple[str, _Finding] | None = None

    def __call__(self, name: str, path: str) -> tuple[str, bytes] | None:
        """The file and the bytes of what the module at `path` imports as `name`."""
        if self._last is None or path != self._last[0]:
            self._last = (path, self._modules_of(path))
        modules, known = self._last[1]
        if name not in known:
            known[name] = self._found(name, modules)
        return known[name]

    def _found(self, name: str, modules: Modules) -> tuple[str, bytes] | None:
        found = modules.path_of(absolute_name(name, modules.package))
        if found is None or not found.endswith(".py"):
            return None
        data = self._read(found)
        return None if data is None else (found, data)

    def _modules_of(self, path: str) -> _Finding:
        folder = os.path.dirname(path)
        known = self._modules.get(folder) or self._modules.get(path)
        if known is None:
            modules = Modules(path, self._read)
            known = (modules, {})
            self._modules[folder if modules.package else path] = known
        return known
