"""Comments that silence: ``# noqa``, ``# gradguard: ignore[…]`` and ``# gradguard: skip-file``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NOQA = re.compile(rb"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?", re.IGNORECASE)
_IGNORE = re.compile(
    rb"#\s*gradguard:\s*ignore(?![\w-])(?P<list>\s*\[(?P<codes>[^\]#]*)(?P<end>\]?))?"
)
_SKIP = re.compile(rb"^[ \t]*#\s*gradguard:\s*skip-file\b", re.MULTILINE)


def suppressed(line: bytes, code: str) -> bool:
    """Whether a comment on `line` silences `code`."""
    return _by_noqa(line, code) or any(
        not match["list"] or any(_stands_for(selector, code) for selector in _selectors(match))
        for match in _IGNORE.finditer(line)
    )


def _by_noqa(line: bytes, code: str) -> bool:
    for match in _NOQA.finditer(line):
        codes = match.group("codes")
        if codes is None:
            rest = line[match.end() :].lstrip()
            if rest.startswith(b":"):
                continue  # a malformed list of codes silences nothing
            return True
        names = re.findall(rb"[A-Z]+[0-9]+", codes.upper())
        if code.encode() in names:
            return True
    return False


def _selectors(match: re.Match[bytes]) -> list[str]:
    """The codes and prefixes in the brackets; none where these are not closed."""
    if not match["end"]:
        return []
    parts = match["codes"].decode("utf-8", "replace").split(",")
    return [part.strip().upper() for part in parts if part.strip()]


def _stands_for(selector: str, code: str) -> bool:
    return code.startswith(selector)


def unusable(data: bytes, codes: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Each ``# gradguard: ignore[…]`` that does not say what it silences: its line, and why.

    Args:
        data: a file's source.
        codes: the codes that there are.
    """
    for line, comment in _comments(data, _IGNORE):
        match = _IGNORE.search(comment)
        if match is None or not match["list"]:
            continue
        written = match.group().decode("utf-8", "replace")
        selectors = _selectors(match)
        if not selectors:
            yield line, f"`{written}` names no code, so it silences nothing"
        for selector in selectors:
            if not any(_stands_for(selector, code) for code in codes):
                yield line, f"`{written}`: there is no code {selector!r} (see `gradguard rules`)"


def skips_file(data: bytes) -> bool:
    """Whether a comment of the file (not a string in it) asks to leave it out."""
    return any(True for _ in _comments(data, _SKIP))


def _comments(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """The comments of `data` that match `pattern`, with their lines."""
    if not pattern.search(data):
        return
    import io
    import tokenize

    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT and pattern.search(token.string.encode()):
                yield token.start[0], token.string.encode()
    except (tokenize.TokenError, SyntaxError, ValueError):
        return  # no Python from there on, which its own check says
