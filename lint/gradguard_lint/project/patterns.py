"""Path patterns in ``.gitignore`` syntax; invalid ones are skipped."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    Verdict: TypeAlias = Callable[[str], bool | None]
    """For a relative path, with a trailing slash for folders: True if the patterns match it or a
    folder around it, False if they negate it, None if neither."""

_SIMPLE = re.compile(r"(?!/?\*/?$)/?(?:(?:[-\w.~@+%,?]|\*(?!\*)|\[\w+\])+/?)+")
"""A pattern without negation, escapes, ranges or double stars."""


def compile_patterns(patterns: Sequence[str]) -> tuple[Verdict | None, list[str]]:
    """A matcher of all valid `patterns`, and the invalid ones."""
    said = [line for line in patterns if line.strip() and not line.startswith("#")]
    if all(map(_SIMPLE.fullmatch, said)):
        return _simple(said), []
    verdict = _compile(patterns)
    if verdict is not None and not any("[" in pattern for pattern in said):
        return verdict, []
    usable = [pattern for pattern in patterns if _compile([pattern]) is not None]
    return _compile(usable), [pattern for pattern in patterns if pattern not in usable]


def _simple(patterns: Iterable[str]) -> Verdict:
    """The matcher of `_SIMPLE` patterns: importing pathspec takes longer than most checks."""
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
    """The matcher of `patterns`; None if one is invalid."""
    from pathspec import GitIgnoreSpec

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `re` warns about nested sets
            spec = GitIgnoreSpec.from_lines(patterns)
    except (ValueError, re.error):
        return None
    # As in git, an unclosed bracket matches nothing: a mistake.
    if len(patterns) == 1 and "[" in patterns[0] and spec.patterns[0].regex is None:
        return None
    return lambda name: spec.check_file(name).include


def relative(path: str, root: str) -> str:
    """`path` relative to `root`, with forward slashes; unchanged on another drive."""
    try:
        path = os.path.relpath(path, root)
    except ValueError:
        pass
    return path.replace(os.sep, "/")


def matches(verdict: Verdict | None, path: str, root: str) -> bool:
    """Whether `verdict`, with patterns relative to `root`, matches `path` or a folder around it."""
    if verdict is None:
        return False
    name = relative(os.path.abspath(path), root)
    return bool(verdict(name) or verdict(name + "/"))
