"""Which Python files a path stands for: folders walked, ``.gitignore`` and excludes obeyed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".bzr",
        ".tox",
        ".nox",
        ".venv",
        "venv",
        ".eggs",
        "__pycache__",
        "node_modules",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".gradguard_cache",
        ".ipynb_checkpoints",
        "__pypackages__",
        "_build",
        "buck-out",
        ".direnv",
        ".pytype",
    }
)
"""Folders that are never walked into (a path that is named is always used)."""


class Trouble(NamedTuple):
    """A path that could not be used, and why."""

    path: str
    line: int
    message: str


class Ignores:
    """The ``.gitignore`` files from the repository's root down to a folder."""

    def __init__(self, base: str | None = None) -> None:
        self.base = base
        self._specs: dict[str, Any] = {}
        self._chains: dict[str, tuple[tuple[str, Any], ...]] = {}

    def _spec(self, folder: str) -> Any:
        if folder not in self._specs:
            spec = None
            try:
                with open(os.path.join(folder, ".gitignore"), encoding="utf-8") as stream:
                    lines = [line for line in stream.read().splitlines() if line.strip()]
            except (OSError, UnicodeDecodeError):
                lines = []
            if any(not line.startswith("#") for line in lines):
                spec = compile_patterns(lines)
            self._specs[folder] = spec
        return self._specs[folder]

    def chain(self, folder: str) -> tuple[tuple[str, Any], ...]:
        """The patterns that hold in `folder`, outermost first."""
        if folder not in self._chains:
            parent = os.path.dirname(folder)
            inherited: tuple[tuple[str, Any], ...] = ()
            if (
                folder != self.base
                and parent != folder
                and not os.path.isdir(os.path.join(folder, ".git"))
            ):
                inherited = self.chain(parent)
            spec = self._spec(folder)
            self._chains[folder] = (*inherited, (folder, spec)) if spec is not None else inherited
        return self._chains[folder]

    def ignored(self, folder: str, path: str, *, is_folder: bool) -> bool:
        """Whether `path`, in `folder`, is ignored; the innermost file that says so decides."""
        for root, spec in reversed(self.chain(folder)):
            name = os.path.relpath(path, root).replace(os.sep, "/")
            verdict = spec.check_file(name + "/" if is_folder else name).include
            if verdict is not None:
                return bool(verdict)
        return False

    def ignored_above(self, folder: str) -> bool:
        """Whether `folder`, or a folder around it, is ignored itself."""
        current = folder
        while True:
            parent = os.path.dirname(current)
            if parent == current or os.path.isdir(os.path.join(current, ".git")):
                return False
            if self.ignored(parent, current, is_folder=True):
                return True
            current = parent


def compile_patterns(patterns: Iterable[str]) -> Any:
    """Patterns in the syntax of ``.gitignore``.

    Raises:
        ValueError: a pattern that cannot be understood.
    """
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)


def discover(
    paths: Iterable[str], exclude: Callable[[str], bool], troubles: list[Trouble]
) -> Iterator[str]:
    """The Python files below `paths`, each once, in the order of their names."""
    seen: set[str] = set()
    ignores = Ignores()
    for path in paths:
        if os.path.isdir(path):
            top = os.path.abspath(path)
            # A folder that is named is wanted, whatever the files above it say.
            own = Ignores(top) if ignores.ignored_above(top) else ignores
            for name in _walk(path, exclude, own, troubles):
                if name not in seen:
                    seen.add(name)
                    yield name
        elif os.path.lexists(path):
            name = os.path.normpath(path)
            if name not in seen:
                seen.add(name)
                yield name
        else:
            troubles.append(Trouble(path, 1, "no such file or folder"))


def _walk(
    top: str, exclude: Callable[[str], bool], ignores: Ignores, troubles: list[Trouble]
) -> Iterator[str]:
    top = os.path.normpath(top)
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            troubles.append(Trouble(folder, 1, f"cannot be read: {error.strerror or error}"))
            continue
        absolute = os.path.abspath(folder)
        chain = bool(ignores.chain(absolute))
        folders = []
        for entry in entries:
            name = entry.name
            path = name if folder == os.curdir else os.path.join(folder, name)
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                is_folder = False
            if is_folder:
                if name in ALWAYS_OUT or exclude(path):
                    continue
                if chain and ignores.ignored(
                    absolute, os.path.join(absolute, name), is_folder=True
                ):
                    continue
                folders.append(path)
            elif name.endswith(".py") and not exclude(path):
                if chain and ignores.ignored(
                    absolute, os.path.join(absolute, name), is_folder=False
                ):
                    continue
                yield path
        pending.extend(reversed(folders))
