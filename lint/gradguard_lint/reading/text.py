"""Bytes to text and lines, as Python reads a file of source."""

from __future__ import annotations

import re

_COOKIE = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")
_LINE_END = re.compile(rb"\r\n|\r|\n")

TOO_DEEP = "an expression is nested too deeply to be read"

NOTEBOOK = ".ipynb"
"""How the names of notebooks end."""
_TOP_LEVEL_AWAIT = 0x2000


def compile_flags(path: str) -> int:
    """The flags with which Python reads the file at `path`: cells may `await` at their top."""
    return _TOP_LEVEL_AWAIT if path.endswith(NOTEBOOK) else 0


class SourceError(Exception):
    """A file that cannot be read as Python.

    Attributes:
        line: where, counted from 1.
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def check(data: bytes) -> None:
    """Make sure that `data` is text at all.

    Raises:
        SourceError: it is not.
    """
    if b"\0" in data:
        line = len(_LINE_END.findall(data[: data.index(b"\0")])) + 1
        raise SourceError("contains a null byte", line)
    if not data.isascii() or b"coding" in data[:200]:
        decode(data)


def decode(data: bytes) -> str:
    """The text of `data`, in the encoding that it declares, without a byte order mark.

    Raises:
        SourceError: it is not in that encoding; Python itself looks at no comment and refuses them.
    """
    encoding = encoding_of(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = len(_LINE_END.findall(data[: error.start])) + 1
        what = f"byte 0x{data[error.start]:02x} is not {encoding.removesuffix('-sig')}"
        if encoding == "utf-8":
            what += ", and no other encoding is declared"
        raise SourceError(f"cannot be decoded: {what}", line) from None
    except (LookupError, ValueError) as error:
        raise SourceError(f"cannot be decoded: {error}") from None


def encode(text: str) -> bytes:
    """What a file holds that reads as `text`: in the encoding that it declares, else in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        return text.encode(encoding_of(data))
    except (SourceError, LookupError, UnicodeError):
        return data  # which its check refuses


def encoding_of(data: bytes) -> str:
    """The encoding of `data`; ``utf-8-sig`` where a byte order mark begins it.

    Raises:
        SourceError: what it declares is none, or not what its byte order mark says.
    """
    if any(map(_COOKIE.match, _LINE_END.split(data[:1000], 2)[:2])):
        return _declared(data)
    return "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"


def _declared(data: bytes) -> str:
    import io
    import tokenize

    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:
        raise SourceError(f"cannot be decoded: {error.msg}") from None


def byte_lines(data: bytes) -> list[bytes]:
    """The lines of `data`, as Python counts them (a form feed or U+2028 ends none), in UTF-8."""
    if not data.isascii():
        try:
            data = decode(data).encode("utf-8")
        except SourceError:
            pass
    return _LINE_END.split(data)
