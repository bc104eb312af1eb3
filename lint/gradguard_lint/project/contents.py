"""Files as bytes: special or huge files are refused, without blocking on them."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import BinaryIO

LARGEST = 16 * 1024 * 1024
"""The most bytes of a checked file: larger ones hold data, and take minutes and gigabytes."""

_TOO_LARGE = f"is too large: files above {LARGEST >> 20} MiB are not checked (`exclude` them)"


class Unusable(Exception):
    """A file that can't be used; the message gives the reason."""


def read(path: str) -> bytes:
    """The content of the file at `path`.

    Raises:
        Unusable: it is no regular file, too large, or can't be read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"cannot be read: it is {_kind(status.st_mode)}, not a file")
        if status.st_size > LARGEST:
            raise Unusable(_TOO_LARGE)
        with open(path, "rb", buffering=0) as stream:
            return stream.read(status.st_size + 1)
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from None


def read_stream(stream: BinaryIO | None) -> bytes:
    """The content of `stream`, standard input.

    Raises:
        Unusable: it is closed, too large, or can't be read.
    """
    if stream is None:
        raise Unusable("cannot be read: it is closed")
    try:
        data = stream.read(LARGEST + 1)
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise Unusable(_TOO_LARGE)
    return data


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "something else"
