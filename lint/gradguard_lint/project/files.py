"""Discovery of Python files and notebooks, with ``.gitignore`` and excludes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.patterns import compile_patterns, relative
from pytest_gradguard.records import Record, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.patterns import Verdict

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
"""Folders that are never searched, unless given by the user."""


SUFFIXES = (".py", ".ipynb")
"""The suffixes of files that are searched for in folders."""


UNCHANGED: Mapping[str, bytes] = {}
"""Overrides of file contents: none."""


@record
class Trouble(Record):
    """A path that couldn't be used, with the reason; line 0: the message names the place itself.

    In notebooks, the line is within a cell. If the trouble is with the whole file, no line is
    shown.
    """

    path: str
    line: int
    message: str
    cell: int = 0
    whole: bool = False


class Ignores:
    """The ``.gitignore`` files from the repository's root down to a folder."""

    def __init__(self, base: str | None, warnings: list[Trouble]) -> None:
        self.base = base
        self.warnings = warnings
        self._read_in: dict[str, Verdict | None] = {}
        self._chains: dict[str, tuple[tuple[str, Verdict], ...]] = {}

    def _own(self, folder: str) -> Verdict | None:
        if folder not in self._read_in:
            self._read_in[folder] = self._read(os.path.join(folder, ".gitignore"))
        return self._read_in[folder]

    def _read(self, path: str) -> Verdict | None:
        """The patterns of one file, without invalid ones, as git does; or None."""
        if not os.path.lexists(path):
            return None
        try:
            data = read(path).removeprefix(b"\xef\xbb\xbf")
        except Unusable as error:
            self.warnings.append(Trouble(path, 1, str(error), whole=True))
            return None
        lines = data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
        if all(line.startswith("#") or not line.strip() for line in lines):
            return None
        verdict, unusable = compile_patterns(lines)
        self.warnings += [
            Trouble(path, lines.index(text) + 1, f"the pattern {text!r} cannot be used")
            for text in unusable
        ]
        return verdict

    def chain(self, folder: str) -> tuple[tuple[str, Verdict], ...]:
        """The patterns that apply in `folder`, outermost first."""
        if folder not in self._chains:
            parent = os.path.dirname(folder)
            inherited: tuple[tuple[str, Verdict], ...] = ()
            if (
                folder != self.base
                and parent != folder
                and not os.path.isdir(os.path.join(folder, ".git"))
            ):
                inherited = self.chain(parent)
            own = self._own(folder)
            self._chains[folder] = (*inherited, (folder, own)) if own is not None else inherited
        return self._chains[folder]

    def ignored(self, folder: str, path: str, *, is_folder: bool) -> bool:
        """Whether `path` in `folder` is ignored; the innermost ``.gitignore`` decides."""
        for root, said in reversed(self.chain(folder)):
            name = relative(path, root)
            verdict = said(name + "/" if is_folder else name)
            if verdict is not None:
                return verdict
        return False

    def ignored_above(self, folder: str) -> bool:
        """Whether `folder` itself, or one above it, is ignored."""
        current = folder
        while True:
            parent = os.path.dirname(current)
            if parent == current or os.path.isdir(os.path.join(current, ".git")):
                return False
            if self.ignored(parent, current, is_folder=True):
                return True
            current = parent


Excludes = Callable[[str, "str | None"], bool]
"""``excludes(path, named)``: whether the configuration excludes an absolute path below the folder
given by the user."""


def absolute(path: str) -> str:
    """The absolute path of a file, or a name in angle brackets unchanged."""
    return path if path.startswith("<") else os.path.abspath(path)


def discover(
    paths: Iterable[str], excludes: Excludes, troubles: list[Trouble], warnings: list[Trouble]
) -> Iterator[str]:
    """Python files and notebooks below `paths`, each once, in name order.

    Errors in `paths` are added to `troubles`, those in ``.gitignore`` files to `warnings`.
    """
    seen: set[str] = set()
    ignores = Ignores(None, warnings)
    for path in paths:
        if os.path.isdir(path):
            top = os.path.abspath(path)
            # A folder given by the user is checked even if a file above ignores it.
            own = Ignores(top, warnings) if ignores.ignored_above(top) else ignores
            found = _walk(path, excludes, own, troubles)
        elif os.path.lexists(path):
            found = iter([os.path.normpath(path)])
        else:
            troubles.append(Trouble(path or "''", 1, "no such file or folder", whole=True))
            continue
        for name in found:
            absolute = os.path.abspath(name)
            if absolute not in seen:
                seen.add(absolute)
                yield name


def _walk(top: str, excludes: Excludes, ignores: Ignores, troubles: list[Trouble]) -> Iterator[str]:
    top = os.path.normpath(top)
    named = os.path.abspath(top)
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
            troubles.append(Trouble(folder, 1, why, whole=True))
            continue
        absolute = os.path.abspath(folder)
        chain = bool(ignores.chain(absolute))
        folders = []
        for entry in entries:
            name = entry.name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                is_folder = False
            if (name in ALWAYS_OUT) if is_folder else not name.endswith(SUFFIXES):
                continue
            inside = os.path.join(absolute, name)
            if excludes(inside, named):
                continue
            if chain and ignores.ignored(absolute, inside, is_folder=is_folder):
                continue
            path = name if folder == os.curdir else os.path.join(folder, name)
            if is_folder:
                folders.append(path)
            else:
                yield path
        pending.extend(reversed(folders))
