"""Which versions of packages a project asks for, as its files say.

They are read only where a finding hangs on it. What is not understood asks for nothing.
"""

from __future__ import annotations

import ast
import codecs
import configparser
import os
import re
from collections.abc import Callable, Iterator

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.modules import is_project
from gradguard_lint.reading.source import SourceError, tree_of
from pytest_gradguard.records import fields
from pytest_gradguard.settings import SettingsError, document

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

Release = tuple[int, ...]


def release(version: str) -> Release:
    """The numbers of `version`; zeros at its end say nothing."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


@fields
class Requirement:
    """What one line asks of a package.

    Attributes:
        name: the package, as indexes know it.
        text: how it is written.
        file: the file that says so, by its base name.
        clauses: the lowest version that each clause lets through, and what ends those that it
            does, where anything does: a version, and whether that one still fits.
    """

    name: str
    text: str
    file: str
    clauses: tuple[tuple[Release, Release | None, bool], ...] = ()

    def stays_below(self, version: Release) -> bool:
        """Whether only versions below `version` fit."""
        return any(
            end is not None and (end < version if fits else end <= version)
            for _, end, fits in self.clauses
        )

    def starts_at(self, version: Release) -> bool:
        """Whether only `version` and what is above it fit."""
        return any(least >= version for least, _, _ in self.clauses)


class Requirements:
    """What the projects around files ask for, read once a folder."""

    def __init__(self) -> None:
        self._known: dict[str, list[Requirement]] = {}

    def below(self, path: str, packages: list[str], version: str) -> Requirement | None:
        """What keeps one of `packages` below `version` in the project of the file at `path`.

        The nearest folder that asks for one of them decides, up to that of the project. None where
        nothing keeps it there, or something else there asks for `version` or above.
        """
        limit = release(version)
        folder = os.path.dirname(os.path.abspath(path))
        while True:
            asked = [it for it in self._in(folder) if it.name in packages]
            if asked:
                kept = [it for it in asked if it.stays_below(limit)]
                return kept[0] if kept and not any(it.starts_at(limit) for it in asked) else None
            parent = os.path.dirname(folder)
            if parent == folder or is_project(folder):
                return None
            folder = parent

    def _in(self, folder: str) -> list[Requirement]:
        if folder not in self._known:
            self._known[folder] = [*_asked_in(folder)]
        return self._known[folder]


_LISTS = re.compile(r"requirements.*\.txt\Z", re.IGNORECASE)


def _asked_in(folder: str) -> Iterator[Requirement]:
    for name in _names_in(folder):
        path = os.path.join(folder, name)
        if name == "requirements":
            for inner in _names_in(path):
                if inner.endswith(".txt"):
                    yield from _asked_by(os.path.join(path, inner), _of_list)
        elif _LISTS.match(name):
            yield from _asked_by(path, _of_list)
        elif name in _READERS:
            yield from _asked_by(path, _READERS[name])


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _asked_by(path: str, reader: Callable[[str], Iterator[str]]) -> list[Requirement]:
    """What the file at `path` asks for, as `reader` finds it in its text."""
    name = os.path.basename(path)
    try:
        data = read(path)
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
        return [*filter(None, (_requirement(line, name) for line in reader(text)))]
    except (Unusable, SourceError, SettingsError, configparser.Error, ValueError):
        return []


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


# -- one requirement -------------------------------------------------------------------------------

_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)\s*(?:\[[^]]*\]\s*)?(?P<rest>[^\w.\[-].*)?\Z"
)

_CLAUSE = re.compile(
    r"\s*(?P<how>===?|~=|<=|>=|!=|[<>^~=])?\s*v?(?P<version>\d+(?:\.\d+)*)"
    r"(?P<suffix>\.?\*|=[\w.*]+|(?:[-._]?(?:a|b|c|rc|alpha|beta|pre|post|dev)[-._]?\d*)*"
    r"(?:\+[\w.]+)?)\s*\Z"
)


def _requirement(text: str, file: str) -> Requirement | None:
    """What `text` asks for, a package and clauses about its version; None where it says no such."""
    text = text.strip()
    named = _NAMED.match(text)
    if named is None:
        return None
    rest = (named["rest"] or "").strip()
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1]
    clauses = [_CLAUSE.match(part) for part in rest.split(",")] if rest else []
    if None in clauses:
        return None
    name = re.sub(r"[-_.]+", "-", named["name"]).lower()
    return Requirement(name, text, file, tuple(_bounds(it) for it in clauses if it is not None))


def _bounds(clause: re.Match[str]) -> tuple[Release, Release | None, bool]:
    """What one clause lets through, as `Requirement.clauses` has it."""
    how, suffix = clause["how"] or "==", clause["suffix"]
    numbers = tuple(int(part) for part in clause["version"].split("."))
    number = release(clause["version"])
    if how in (">=", ">"):
        return number, None, False
    if how in ("<=", "<"):
        return (), number, how == "<="
    if how == "!=":
        return (), None, False
    if "*" in suffix or (how == "=" and not suffix.startswith("=")):
        return number, _after(numbers), False
    if how == "~=":
        return number, _after(numbers[:-1]) if numbers[1:] else None, False
    if how == "~":
        return number, _after(numbers[:2]), False
    if how == "^":
        first = next((at for at, part in enumerate(numbers) if part), len(numbers) - 1)
        return number, _after(numbers[: first + 1]), False
    return number, number, True


def _after(prefix: Release) -> Release:
    """The first version after all that begin with `prefix`."""
    return (*prefix[:-1], prefix[-1] + 1)


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
    """The requirements of a table from names to versions, or to tables with one."""
    for name, asked in table.items():
        for one in asked if isinstance(asked, list) else [asked]:
            version = one.get("version") if isinstance(one, dict) else one
            if isinstance(version, str):
                plain = version.strip()
                yield f"{name}=={plain}" if plain[:1].isdigit() else f"{name}{plain}"


def _of_setup_cfg(text: str) -> Iterator[str]:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    values = [parser.get("options", "install_requires", fallback="")]
    if parser.has_section("options.extras_require"):
        values += (value for _, value in parser.items("options.extras_require"))
    for value in values:
        yield from _of_list(value)


def _of_setup(text: str) -> Iterator[str]:
    """What is written in the arguments of ``setup``, or in a list that they name."""
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
    """The lines of a list, or of those in a dict, that is written out."""
    try:
        lists = ast.literal_eval(value) if value is not None else []
    except ValueError:
        return
    for lines in lists.values() if isinstance(lists, dict) else [lists]:
        yield from _lines([*lines] if isinstance(lines, tuple) else lines)


_READERS = {
    "pyproject.toml": _of_pyproject,
    "setup.cfg": _of_setup_cfg,
    "setup.py": _of_setup,
    "Pipfile": _of_pipfile,
    "environment.yml": _of_conda,
    "environment.yaml": _of_conda,
}
