"""The Python version that a project supports, from its metadata."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.literals import matches

_REQUIRES = re.compile(
    rb"^[ \t]*requires-python[ \t]*=[ \t]*[\"'][^\"'\n]*>=?[ \t]*3\.(\d+)", re.MULTILINE
)


_SET_METHOD = rb"set_start_method[ \t]*\([ \t]*(?:method[ \t]*=[ \t]*)?[\"'](spawn|forkserver)[\"']"


def set_method(files: Iterable[bytes]) -> str:
    """The start method other than fork that one of `files` sets for its program, or ""."""
    for data in files:
        for match in matches(data, (b"set_start_method",), _SET_METHOD):
            return match.group(1).decode()
    return ""


class Targets:
    """The lowest supported Python of the project around each file."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int] | None] = {}

    def of(self, path: str) -> tuple[int, int] | None:
        """The version for the file at `path`; None if it is unspecified."""
        return self._in(os.path.dirname(os.path.abspath(path)))

    def _in(self, folder: str) -> tuple[int, int] | None:
        if folder not in self._known:
            found = _required(os.path.join(folder, "pyproject.toml"))
            parent = os.path.dirname(folder)
            if found is None and parent != folder:
                found = self._in(parent)
            self._known[folder] = found
        return self._known[folder]


def _required(path: str) -> tuple[int, int] | None:
    if not os.path.isfile(path):
        return None
    try:
        match = _REQUIRES.search(read(path))
    except Unusable:
        return None
    return (3, int(match.group(1))) if match is not None else None
