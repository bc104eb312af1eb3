"""Patterns of paths in the syntax of ``.gitignore``; what cannot be used costs only itself."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    Verdict: TypeAlias = Callable[[str], bool | None]
    """Of a relative path, with a slash at the end where it is a folder: True where the patterns
    name it or a folder around it, False where they take it back, None where they say nothing."""

_SIMPLE = re.compile(r"(?!/?\*/?$)/?(?:(?:[-\w.~@+%,?]|\*(?!\*)|\[\w+\])+/?)+")
"""A pattern without negation, escapes, ranges and double stars."""


def compile_patterns(patterns: Sequence[str]) -> tuple[Verdict | None, list[str]]:
    """A matcher of all `patterns` that can be used, and those that cannot."""
    said = [line for line in patterns if line.strip() and not line.startswith("#")]
    if all(map(_SIMPLE.fullmatch, said)):
        return _simple(said), []
    verdict = _compile(patterns)
    if verdict is not None and not any("[" in pattern for pattern in said):
        return verdict, []
    usable = [pattern for pattern in patterns if _compile([pattern]) is not None]
    return _compile(usable), [pattern for pattern in patterns if pattern not in usable]


def _simple(patterns: Iterable[str]) -> Verdict:
    """The matcher of `_SIMPLE` patterns: to import pathspec takes longer than most checks."""
    wild = {"*": "[^/]*", "?": "[^/]"}

    def translated(part: str) -> str:
        if part == "*":
            return "[^/]+"
        return re.sub(r"[*?]|[^]\w[]", lambda it: wild.get(it[0], "\\" + it[0]), part)

    alternatives = []
    for pattern in patterns:
        name = pattern.rstrip("/")
        text = "/".join(map(translated, name.lstrip("/").split("/")))
        start = r"\A" if "/" in name else r"(?:\A|/)"
        end = "/" if name != pattern else r"(?:/|\Z)"
        alternatives.append(start + text + end)
    search = re.compile("|".join(alternatives) or r"(?!)").search
    return lambda name: True if search(name) else None


def _compile(patterns: Sequence[str]) -> Verdict | None:
    """The matcher of `patterns`, or None where one of them cannot be used."""
    from pathspec import GitIgnoreSpec

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `re`, on sets within sets
            spec = GitIgnoreSpec.from_lines(patterns)
    except (ValueError, re.error):
        return None
    # A bracket that is not closed matches nothing, as in git: nobody means that.
    if len(patterns) == 1 and "[" in patterns[0] and spec.patterns[0].regex is None:
        return None
    return lambda name: spec.check_file(name).include


def relative(path: str, root: str) -> str:
    """`path` as seen from `root`, with forward slashes; unchanged where they share no drive."""
    try:
        path = os.path.relpath(path, root)
    except ValueError:
        pass
    return path.replace(os.sep, "/")


def matches(verdict: Verdict | None, path: str, root: str) -> bool:
    """Whether `verdict`, whose patterns are relative to `root`, names `path` or a folder around
    it."""
    if verdict is None:
        return False
    name = relative(os.path.abspath(path), root)
    return bool(verdict(name) or verdict(name + "/"))
