"""The file that a report goes to: opened before the work, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
from types import TracebackType

from pytest_gradguard.platforms import HERE

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import IO

__all__ = ["Target", "TargetError"]


class TargetError(Exception):
    """The file cannot be written; the message is one line that names it and the reason."""


class Target:
    """A file that `write` fills; a block that ends without it leaves everything as it was.

    A regular file is replaced by a new one from the same folder, so that a reader finds the old
    report or the new one; of a link, what it points to is replaced. A device, a pipe, and a file
    that a standard stream goes to (as with ``/dev/stdout``) are written to as they are.

    Args:
        path: the file.
        over_reports: of what is there, only an earlier report may be replaced.

    Raises:
        TargetError: `path` cannot be opened, or what is there may not be replaced.
    """

    def __init__(self, path: str, *, over_reports: bool = False) -> None:
        self.path = path
        self._over_reports = over_reports
        self._new: str | None = None
        try:
            self._stream = self._open()
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from None

    def _open(self) -> IO[bytes]:
        if not self.path:
            raise TargetError("the name of the file to write is empty")
        try:
            known = os.stat(self.path)
        except FileNotFoundError:
            self._check_replaceable()
            return self._beside(os.path.realpath(self.path))
        if stat.S_ISDIR(known.st_mode):
            raise self._refusal("it is a folder")
        stream = _standard_stream(known)
        if stream is not None:
            return stream
        if not stat.S_ISREG(known.st_mode):
            return self._as_it_is()
        self._check_replaceable()
        if not os.access(self.path, os.W_OK):
            raise self._refusal(os.strerror(errno.EACCES))
        try:
            stream = self._beside(os.path.realpath(self.path))
        except PermissionError:  # the file may be written, but nothing new made in its folder
            return open(self.path, "r+b")
        os.chmod(str(self._new), stat.S_IMODE(known.st_mode))
        return stream

    def _check_replaceable(self) -> None:
        if self._over_reports:
            from pytest_gradguard.reports.earlier import why_kept

            reason = why_kept(os.path.realpath(self.path))
            if reason is not None:
                raise self._refusal(reason)

    def _beside(self, place: str) -> IO[bytes]:
        """A new file in the folder of `place`, to replace it."""
        folder = os.path.dirname(place)
        if not os.path.isdir(folder):
            raise self._refusal(f"there is no folder {folder}")
        self._new = os.path.join(folder, f".gradguard-{os.urandom(8).hex()}")
        self._place = place
        try:
            return open(self._new, "xb")
        except OSError:
            self._new = None
            raise

    def _as_it_is(self) -> IO[bytes]:
        try:
            number = os.open(self.path, os.O_WRONLY | HERE.nonblocking)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise self._refusal("nothing reads from it") from None
            raise
        HERE.set_blocking(number, True)
        return open(number, "wb")

    def write(self, text: str) -> None:
        """Fill the file with `text`, in UTF-8, and put it in place.

        Raises:
            TargetError: that failed, and an earlier report is still there.
        """
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        """Fill the file with `data`, and put it in place.

        Raises:
            TargetError: that failed, and what the file held is still there.
        """
        try:
            self._stream.write(data)
            if "+" in self._stream.mode:
                self._stream.truncate()
            self._stream.close()
            if self._new is not None:
                os.replace(self._new, self._place)
                self._new = None
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from None

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._stream.close()
        except OSError:  # `write` has said so
            pass
        if self._new is not None:
            os.unlink(self._new)

    def _refusal(self, reason: str) -> TargetError:
        return TargetError(f"{self.path}: cannot be written: {reason}")


def _standard_stream(known: os.stat_result) -> IO[bytes] | None:
    """Another way to write to a standard stream, where `known` is what it goes to."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and os.path.samestat(os.fstat(stream.fileno()), known):
                return open(os.dup(stream.fileno()), "wb")
        except (OSError, ValueError):  # it is closed
            continue
    return None
