"""Patterns that are matched here mean what they mean to pathspec, which reads all others."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as some

from gradguard_lint.project.patterns import _SIMPLE, _compile, _simple

pattern = some.text("ab*?/.-é", min_size=1, max_size=6) | some.sampled_from(
    ["*.py[cod]", "[ab]*", "a/[b]", "*.egg-info/", "/dist/", "docs/_build/"]
)
parts = some.lists(some.text("ab.-é", min_size=1, max_size=3), min_size=1, max_size=3)


@given(pattern, parts, some.booleans())
@settings(deadline=None)  # how fast this machine is today proves nothing
@example("a/*", ["a"], True)
def test_simple_patterns_are_those_of_git(pattern, parts, is_folder):
    if not _SIMPLE.fullmatch(pattern) or {".", ".."} & set(parts):
        return
    path = "/".join(parts) + "/" * is_folder
    judged = _compile([pattern])
    assert _simple([pattern])(path) == (judged and judged(path)), (pattern, path)
