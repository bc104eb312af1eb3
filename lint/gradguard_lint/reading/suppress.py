"""``# noqa`` and ``# gradguard: skip-file``."""

from __future__ import annotations

import io
import re
import tokenize

_NOQA = re.compile(rb"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?", re.IGNORECASE)
_SKIP = re.compile(rb"^[ \t]*#\s*gradguard:\s*skip-file\b", re.MULTILINE)


def suppressed(line: bytes, code: str) -> bool:
    """Whether a comment on `line` silences `code`."""
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


def skips_file(data: bytes) -> bool:
    """Whether a comment of the file (not a string in it) asks to leave it out."""
    if not _SKIP.search(data):
        return False
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT and _SKIP.match(token.string.encode()):
                return True
    except (tokenize.TokenError, SyntaxError, ValueError):
        return False
    return False
