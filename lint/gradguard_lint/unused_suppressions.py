"""GG901: comments that silence a code without a finding.

A comment is used if any program of the run would have reported something there. In files whose
programs weren't analysed completely that is unknown, and nothing is reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from gradguard_lint.fixes.edits import RawEdit, decoded, edit_at, lines_of
from gradguard_lint.fixes.noqa import comments_in
from gradguard_lint.project.files import absolute
from gradguard_lint.reading.suppress import IGNORE, NOQA, skips_file, suppressed
from gradguard_lint.rules import UNUSED_SUPPRESSION as CODE
from gradguard_lint.rules.base import listed
from pytest_gradguard.pitfalls import codes

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.analysis import Result
    from gradguard_lint.raw import Raw

_SELECTOR = re.compile(r"[^\s,:]+")
_FORMS = {
    re.compile(pattern.pattern.decode(), pattern.flags & re.IGNORECASE): form
    for pattern, form in ((NOQA, "# noqa: {}"), (IGNORE, "# gradguard: ignore[{}]"))
}
"""Patterns of suppression comments, with the format for one selector."""


class Silenced:
    """The findings that comments silence in a run.

    Args:
        results: of each program of the run, by the path of its entry.
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._codes: dict[str, dict[int, set[str]]] = {}
        self._unknown: set[str] = set()
        for entry, result in results.items():
            for path, line, code in result.silenced:
                self._codes.setdefault(path, {}).setdefault(line, set()).add(code)
            if result.cut or result.error is not None:  # it may have found more
                called = (path for path, _, _ in result.calls)
                self._unknown |= {absolute(entry), *called, *(cut[0] for cut in result.cut)}

    def unused(self, path: str, data: bytes, unknown: Collection[str]) -> list[Raw]:
        """A finding for each comment in a file with unused codes.

        Args:
            path: the file.
            data: its source.
            unknown: the codes that weren't searched for in it.
        """
        path = absolute(path)
        if path in self._unknown or skips_file(data):
            return []
        return list(_find(path, data, self._codes.get(path, {}), unknown))


def _find(
    path: str, data: bytes, silenced: Mapping[int, Collection[str]], unknown: Collection[str]
) -> Iterator[Raw]:
    text = decoded(data)[0]
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    for line, column in sorted(comments_in(data, text).items()):
        comment = lines[line - 1][column:]
        is_allowed = suppressed(comment.encode(), CODE)
        for pattern, form in _FORMS.items():
            for match in pattern.finditer(comment):
                unused = _unused(match, form, silenced.get(line, ()), unknown)
                if unused is not None and not (unused and is_allowed):
                    yield _raw(path, lines, line, column, match, unused)


def _unused(
    match: re.Match[str], form: str, silenced: Collection[str], unknown: Collection[str]
) -> list[str] | None:
    """The selectors of a comment that silence nothing; empty for one without a list.

    Args:
        match: the comment.
        form: the format of such a comment with one selector.
        silenced: the codes that comments of its line silence.
        unknown: the codes that weren't searched for.
    """
    written = match["codes"]
    if written is None:
        is_ours = "list" in match.re.groupindex and not match["list"]
        return [] if is_ours and not silenced and not unknown else None
    unused = []
    for selector in _SELECTOR.findall(written):
        alone = form.format(selector).encode()
        ours = {code for code in codes() if suppressed(alone, code)}
        if ours - {CODE} and ours.isdisjoint(unknown) and ours.isdisjoint(silenced):
            unused.append(selector)
    return unused or None


def _raw(
    path: str, lines: list[str], line: int, column: int, match: re.Match[str], unused: list[str]
) -> Raw:
    """The finding for unused codes, or for an unused comment without codes."""
    message = f"`{match.group().strip()}` silences nothing: no finding is here."
    if unused:
        be = "is" if len(unused) == 1 else "are"
        names = listed([f"`{code}`" for code in unused])
        message = f"This comment silences {names}, which {be} not found here."
    return {
        "code": CODE,
        "path": path,
        "line": line,
        "column": column + match.start() + 1,
        "end_line": line,
        "end_column": column + match.end() + 1,
        "function": None,
        "message": message,
        "severity": None,
        "trace": [],
        "ways": [],
        "case": "",
        "advice": None,
        "details": {},
        "edits": {
            "applicability": "safe",
            "message": "remove what silences nothing",
            "edits": [_edit(path, lines, line, column, match, unused)],
            "alone": [],
            "last": False,
        },
        "gone": None,
        "otherwise": [],
    }


def _edit(
    path: str, lines: list[str], line: int, column: int, match: re.Match[str], unused: list[str]
) -> RawEdit:
    """The edit that removes the codes, or the whole comment with its reason."""
    written = match["codes"] or ""
    kept = [selector for selector in _SELECTOR.findall(written) if selector not in unused]
    if kept:
        start, end = (column + offset for offset in match.span("codes"))
        colon = ": " if written.startswith(":") else ""
        return edit_at(path, (line, start + 1, line, end + 1), f"{colon}{', '.join(kept)}")
    start, source = column + match.start(), lines[line - 1]
    following = match.string.find("#", match.end())
    if following >= 0:  # another comment
        return edit_at(path, (line, start + 1, line, column + following + 1), "")
    start = len(source[:start].rstrip())
    if start == 0 and line < len(lines):
        return edit_at(path, (line, 1, line + 1, 1), "")
    return edit_at(path, (line, start + 1, line, len(source) + 1), "")
