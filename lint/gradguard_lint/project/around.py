"""Project files that import a checked file, and so show how its functions are used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.file_bytes import File
from gradguard_lint.project.files import Excludes, absolute, discover
from gradguard_lint.project.links import module_name
from gradguard_lint.project.patterns import relative
from gradguard_lint.project.reader import Reader

MOST_FILES = 2000
"""In projects with more Python files, importers aren't searched."""

MOST = 16
"""The most importers that are read as programs, nearest first."""


def importers(contents: Mapping[str, bytes], excludes: Excludes) -> dict[str, bytes]:
    """Files of the same project that import one in `contents`, with their bytes.

    Args:
        contents: files by path.
        excludes: the exclusions of the configuration.
    """
    reader = Reader()
    named = {absolute(path) for path in contents}
    wanted: dict[str, set[bytes]] = {}
    for path, data in contents.items():
        root = reader.project_around(os.path.dirname(absolute(path)))
        if root and b"def " in data:
            stems = {module_name(path), module_name(os.path.dirname(absolute(path)))}
            wanted.setdefault(root, set()).update(stems)
    found: dict[str, bytes] = {}
    for root, names in wanted.items():
        paths = [it for it in discover([root], excludes, [], []) if it.endswith(".py")]
        if len(paths) <= MOST_FILES:
            others = (it for it in paths if absolute(it) not in named)
            found.update(_importing(others, names))
    near = sorted(found, key=lambda it: (_distance(it, named), it))
    return {path: found[path] for path in near[:MOST]}


def _importing(paths: Iterable[str], names: set[bytes]) -> Iterable[tuple[str, bytes]]:
    """The `paths` whose imports mention one of `names`, with their bytes."""
    for path in paths:
        try:
            data = read(path)
        except Unusable:
            continue
        if any(name in data for name in names) and not names.isdisjoint(File(data).words):
            yield path, data


def _distance(path: str, named: set[str]) -> int:
    """The number of folders between `path` and the nearest of `named`."""
    return min(relative(path, os.path.dirname(it)).count("/") for it in named)
