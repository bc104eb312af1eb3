"""Comments that silence: ``# noqa``, ``# gradguard: ignore[…]`` and ``# gradguard: skip-file``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_gradguard.suggestions import did_you_mean

NOQA = re.compile(rb"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?", re.IGNORECASE)
IGNORE = re.compile(
    rb"#\s*gradguard:\s*ignore(?![\w-])(?P<list>\s*\[(?P<codes>[^\]#]*)(?P<end>\]?))?"
)
_ANY = re.compile(rb"#\s*gradguard:\s*(?P<word>[\w-]+)")
_WORDS = ("ignore", "skip-file")
_SKIP = re.compile(rb"^[ \t]*#\s*gradguard:\s*skip-file\b", re.MULTILINE)


def suppressed(line: bytes, code: str) -> bool:
    """Whether a comment on `line` silences `code`."""
    return _by_noqa(line, code) or any(
        not match["list"] or any(_stands_for(selector, code) for selector in _selectors(match))
        for match in IGNORE.finditer(line)
    )


def _by_noqa(line: bytes, code: str) -> bool:
    for match in NOQA.finditer(line):
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
    """The codes, prefixes and names in the brackets; none where these are not closed."""
    if not match["end"]:
        return []
    parts = match["codes"].decode("utf-8", "replace").split(",")
    return [part.strip().upper() for part in parts if part.strip()]


def _stands_for(selector: str, code: str) -> bool:
    if "-" not in selector:
        return code.startswith(selector)
    from pytest_gradguard.pitfalls import get

    return get(code).name.upper() == selector


def unusable(data: bytes, codes: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Each ``# gradguard:`` that does not say what it silences: its line, and why.

    Args:
        data: a file's source.
        codes: the codes that there are.
    """
    for line, comment in _comments(data, _ANY):
        match = IGNORE.search(comment)
        if match is None:
            yield from ((line, why) for why in _misspelled(comment))
            continue
        if not match["list"]:
            continue
        written = match.group().decode("utf-8", "replace")
        selectors = _selectors(match)
        if not selectors:
            yield line, f"`{written}` names no code, so it silences nothing"
        for selector in selectors:
            if not any(_stands_for(selector, code) for code in codes):
                said = f"`{written}`: there is no code {selector!r}{did_you_mean(selector, codes)}"
                yield line, f"{said} (see `gradguard rules`)"


def _misspelled(comment: bytes) -> Iterator[str]:
    """Why a comment that nearly says what to silence does not."""
    match = _ANY.search(comment)
    word = match["word"].decode("utf-8", "replace") if match is not None else ""
    if word in _WORDS:
        return
    if meant := did_you_mean(word, _WORDS):
        yield f"`# gradguard: {word}` silences nothing{meant}"


def skips_file(data: bytes) -> bool:
    """Whether a comment of the file (not a string in it) asks to leave it out."""
    return any(True for _ in _comments(data, _SKIP))


def comments_of(lines: Sequence[bytes]) -> dict[int, bytes] | None:
    """The comment of each line that has one; None where the lines cannot be read to their end."""
    import tokenize

    text = (line.decode("utf-8", "replace") + "\n" for line in lines)
    try:
        return {
            token.start[0]: token.string.encode()
            for token in tokenize.generate_tokens(text.__next__)
            if token.type == tokenize.COMMENT
        }
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None  # as strings of newer Pythons are


def _comments(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """The comments of `data` that match `pattern`, with their lines."""
    if b"\r" in data:
        data = re.sub(rb"\r(?!\n)", b"\n", data)
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
