"""Package versions that a project requires, from its files.

They are read only if a finding depends on them. What can't be parsed requires nothing.
"""

from __future__ import annotations

import ast
import codecs
import configparser
import glob
import os
import re
from collections.abc import Callable, Iterator

from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.files import ALWAYS_OUT
from gradguard_lint.project.reader import is_project
from gradguard_lint.reading.source import SourceError, tree_of
from pytest_gradguard.records import fields
from pytest_gradguard.settings import SettingsError, document

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any


@fields
class Asked:
    """The requirement of one line.

    Attributes:
        name: the normalized package name.
        text: its source.
        file: the base name of its file.
        versions: the versions that satisfy it.
        near: versions at and around each of its clauses, one in every interval.
    """

    name: str
    text: str
    file: str
    versions: SpecifierSet
    near: tuple[Version, ...]

    def sides(self, version: str) -> set[bool]:
        """Whether versions that satisfy it are below `version` (False), or from it on (True)."""
        tried = (Version("0"), Version(version), *self.near)
        first = Version(f"{version}.dev0")  # its prereleases count as it does
        return {it >= first for it in tried if self.versions.contains(it, prereleases=True)}


MOST = 1000
"""The most folders of a project that are searched."""


class Requirements:
    """Requirements of the projects around files, read once a folder."""

    def __init__(self) -> None:
        self._known: dict[str, list[Asked]] = {}

    def below(self, path: str, packages: list[str], version: str) -> Asked | None:
        """The requirement that keeps one of `packages` below `version`, for the file at `path`.

        The nearest folder with a requirement decides, up to the project's; if there is none, all
        others of the project together. None if nothing keeps it below, or something requires
        `version` or later.
        """
        folder = os.path.dirname(os.path.abspath(path))
        root = os.getcwd()
        if not f"{folder}{os.sep}".startswith(os.path.join(root, "")):
            root = ""
        while True:
            asked = self._asking(folder, packages)
            if asked:
                return _kept(asked, version)
            parent = os.path.dirname(folder)
            if is_project(folder):
                root = folder
                break
            if parent == folder:
                break  # no project: the current folder instead
            folder = parent
        others = [asked for it in _folders(root) if (asked := self._asking(it, packages))]
        kept = [_kept(asked, version) for asked in others]
        return kept[0] if kept and None not in kept else None

    def _asking(self, folder: str, packages: list[str]) -> list[Asked]:
        """Requirements for one of `packages` in `folder`."""
        return [it for it in self._in(folder) if it.name in packages]

    def _in(self, folder: str) -> list[Asked]:
        if folder not in self._known:
            self._known[folder] = [
                asked
                for pattern, reader in _READERS.items()
                for name in sorted(glob.glob(pattern, root_dir=folder))
                for asked in _asked_by(os.path.join(folder, name), reader)
            ]
        return self._known[folder]


def _kept(asked: list[Asked], version: str) -> Asked | None:
    """The requirement that keeps a package below `version`, of all at one place."""
    sides = [it.sides(version) for it in asked]
    kept = {False} in sides and {True} not in sides
    return asked[sides.index({False})] if kept else None


def _folders(root: str) -> list[str]:
    """The folders below `root`; none if there are too many."""
    found = []
    for folder, inner, _ in os.walk(root) if root else ():
        inner[:] = sorted(name for name in inner if name not in ALWAYS_OUT)
        found.append(folder)
        if len(found) > MOST:
            return []
    return found


def _asked_by(path: str, reader: Callable[[str], Iterator[str]]) -> list[Asked]:
    """The requirements in the file at `path`, found by `reader`."""
    name = os.path.basename(path)
    try:
        data = read(path)
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
        return [*filter(None, (_asked(line.strip(), name) for line in reader(text)))]
    except (Unusable, SourceError, SettingsError, configparser.Error, ValueError):
        return []


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


# -- one requirement -------------------------------------------------------------------------------

_FOREIGN = (
    (r"(?<=\w)\s+(?=\d)", "=="),  # a bare version
    (r"\^\s*(?=((?:0\.)*\d+))", r"==\1.*,>="),  # Poetry's caret
    (r"~\s*(?=(\d+(?:\.\d+)?))", r"==\1.*,>="),  # Poetry's tilde
    (r"==?([\d.]+)=\w.*", r"==\1"),  # conda's build
    (r"(?<![=<>!~])=\s*([\d.]*\d)(?:\.?\*)?", r"==\1.*"),  # conda's fuzzy version
)
"""Clause syntax of tools other than pip, with its meaning."""


def _asked(text: str, file: str) -> Asked | None:
    """The requirement in `text`; None if it isn't one."""
    plain = text
    for pattern, meaning in _FOREIGN:
        plain = re.sub(pattern, meaning, plain)
    try:
        said = Requirement(plain)
        near = tuple(version for clause in said.specifier for version in _near(clause))
    except ValueError:
        return None
    return Asked(canonicalize_name(said.name), text, file, said.specifier, near)


def _near(clause: Specifier) -> Iterator[Version]:
    """The version of `clause`, its final release, and releases between and after these."""
    version = Version(clause.version.removesuffix(".*"))
    *first, last = version.release
    yield version
    for release in ([*first, last], [*first, last, 1], [*first, last + 1]):
        yield Version(".".join(map(str, release)))


# -- the files -------------------------------------------------------------------------------------

_REST = re.compile(r"\s+#.*|\A#.*|\s*;.*|\s+--?\w.*")
"""What follows a requirement: a comment, a marker, options."""


def _of_list(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield _REST.sub("", line.rstrip(" \t\\"))


def _of_conda(text: str) -> Iterator[str]:
    for line in text.splitlines():
        item = re.match(r"\s*-\s+[\"']?(?:[\w.-]+::)?([^\"']*)", line)
        if item is not None:
            yield _REST.sub("", item[1])


def _of_pyproject(text: str) -> Iterator[str]:
    data = document("pyproject.toml", text.encode())
    project, poetry = _table(data, "project"), _table(data, "tool", "poetry")
    yield from _lines(project.get("dependencies"))
    for table in (_table(project, "optional-dependencies"), _table(data, "dependency-groups")):
        for group in table.values():
            yield from _lines(group)
    named = [poetry, *_table(poetry, "group").values()]
    for owner in named:
        for name in ("dependencies", "dev-dependencies"):
            yield from _by_name(_table(owner, name))


def _of_pipfile(text: str) -> Iterator[str]:
    data = document("Pipfile", text.encode())
    for name in ("packages", "dev-packages"):
        yield from _by_name(_table(data, name))


def _table(data: Any, *names: str) -> dict[str, Any]:
    """The table of that name, or an empty one."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _lines(lines: Any) -> Iterator[str]:
    for line in lines if isinstance(lines, list) else ():
        if isinstance(line, str):
            yield _REST.sub("", line)


def _by_name(table: dict[str, Any]) -> Iterator[str]:
    """Requirements of a table from names to versions, or to tables with one."""
    for name, asked in table.items():
        for one in asked if isinstance(asked, list) else [asked]:
            version = one.get("version") if isinstance(one, dict) else one
            if isinstance(version, str):
                yield f"{name} {version}"


def _of_setup_cfg(text: str) -> Iterator[str]:
    parser = configparser.RawConfigParser()
    parser.read_dict({"options": {"install_requires": ""}, "options.extras_require": {}})
    parser.read_string(text)
    yield from _of_list(parser["options"]["install_requires"])
    for value in parser["options.extras_require"].values():
        yield from _of_list(value)


def _of_setup(text: str) -> Iterator[str]:
    """Literals in the arguments of ``setup``, or in lists that they name."""
    tree = tree_of(text.encode(), "setup.py")
    given = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != "setup":
            continue
        for item in node.keywords:
            if item.arg in ("install_requires", "extras_require"):
                named = isinstance(item.value, ast.Name)
                yield from _written(given.get(ast.unparse(item.value)) if named else item.value)


def _written(value: ast.expr | None) -> Iterator[str]:
    """The lines of a literal list, or of lists in a dict."""
    try:
        lists = ast.literal_eval(value) if value is not None else []
    except ValueError:
        return
    for lines in lists.values() if isinstance(lists, dict) else [lists]:
        yield from _lines([*lines] if isinstance(lines, tuple) else lines)


_READERS = {
    "Pipfile": _of_pipfile,
    "environment.y*ml": _of_conda,
    "pyproject.toml": _of_pyproject,
    "requirements/*.txt": _of_list,
    "[Rr]equirements*.txt": _of_list,
    "setup.cfg": _of_setup_cfg,
    "setup.py": _of_setup,
}
