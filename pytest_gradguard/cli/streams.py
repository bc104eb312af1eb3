"""The standard streams, which may be closed, full, or unable to write a character."""

from __future__ import annotations

import os
import sys

from pytest_gradguard.reports.printable import shown

__all__ = ["StreamError", "complain", "flush", "silence", "write", "write_bytes", "write_error"]


class StreamError(Exception):
    """Standard output cannot be written; the message is one line that says why."""


def complain(line: str) -> None:
    """Write one line to standard error; where that is impossible, there is nobody to tell."""
    write_error(f"{shown(line)}\n")


def write(text: str) -> None:
    """Write `text` to standard output, all of it.

    Raises:
        StreamError: it is closed, or there is no room.
        BrokenPipeError: its reader has left.
    """
    if sys.stdout is None:
        raise StreamError("standard output is closed")
    try:
        sys.stdout.write(_writable(text, sys.stdout.encoding))
    except OSError as error:
        raise _told(error) from None
    flush()


def write_bytes(data: bytes) -> None:
    """Write `data` to standard output as it is.

    Raises:
        StreamError, BrokenPipeError: as for `write`.
    """
    if sys.stdout is None:
        raise StreamError("standard output is closed")
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise _told(error) from None
    flush()


def write_error(text: str) -> None:
    """Write `text` to standard error; where that is impossible, there is nobody to tell."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(_writable(text, sys.stderr.encoding))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def flush() -> None:
    """Write what waits for standard output; one that is closed, as by the server, has none.

    Raises:
        StreamError, BrokenPipeError: as for `write`.
    """
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        raise _told(error) from None


def _told(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    return StreamError(f"standard output cannot be written: {error.strerror or error}")


def silence() -> None:
    """What is still waiting for standard output is dropped: its last flush must not complain."""
    if sys.stdout is None:
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def _writable(text: str, encoding: str | None) -> str:
    """`text` with what `encoding` lacks written as Python escapes it."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)
