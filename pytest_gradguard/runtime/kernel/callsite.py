"""The line of the user's own program that is running, found from the calling frames."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest_gradguard
from pytest_gradguard.dynamic_code import DYNAMIC, identified
from pytest_gradguard.runtime.kernel import packages

if TYPE_CHECKING:
    from pytest_gradguard.findings import Location

_OURS = os.path.dirname(os.path.abspath(pytest_gradguard.__file__)) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclass(frozen=True)
class Site:
    """A place in running code, kept small: its columns are computed when they are shown."""

    path: str
    line: int
    function: str
    code: CodeType
    instruction: int

    @property
    def key(self) -> tuple[str, int, int]:
        """Equal for two visits of one call in one piece of code."""
        return (self.path, self.line, self.instruction)

    def location(self) -> Location:
        """The place with its columns, where this Python knows them (3.11 and later)."""
        from pytest_gradguard.findings import Location  # late: most programs need none

        function = None if self.function == "<module>" else self.function
        positions = getattr(self.code, "co_positions", None)
        if positions is not None:
            for index, (line, end_line, column, end_column) in enumerate(positions()):
                if index == self.instruction // 2:
                    if line is None or column is None:
                        break
                    return Location(
                        path=self.path,
                        line=line,
                        column=_characters(self.path, line, column) + 1,
                        end_line=end_line,
                        end_column=(
                            None
                            if end_column is None or end_line is None
                            else _characters(self.path, end_line, end_column) + 1
                        ),
                        function=function,
                    )
        return Location(path=self.path, line=self.line, function=function)


def _characters(path: str, line: int, column: int) -> int:
    """`column`, which Python counts in UTF-8 bytes, in characters."""
    import linecache

    text = linecache.getline(path, line)
    if text.isascii():
        return column
    return len(text.encode()[:column].decode(errors="replace"))


def user_site() -> Site | None:
    """The innermost frame of this thread that is the user's own, or None without one.

    The user's own code is neither gradguard's, nor the standard library's, nor an installed
    package's; failing that, code that is at least not parallel or autograd machinery.
    """
    frame = user_frame()
    return None if frame is None else site_of(frame)


def user_frame() -> FrameType | None:
    """The frame that `user_site` describes."""
    fallback: FrameType | None = None
    for frame in _outward(sys._getframe(1)):
        kind = _kind(file_of(frame))
        if kind == "user":
            return frame
        if kind == "library" and fallback is None:
            fallback = frame
    return fallback


def site_of(frame: FrameType) -> Site:
    """The current place of `frame`."""
    return _site(file_of(frame), frame.f_lineno, frame.f_code, frame.f_lasti)


def site_at(path: str, code: CodeType, instruction: int) -> Site:
    """The place of an instruction of `code`, which was read from the file `path`."""
    lines = (line for first, end, line in code.co_lines() if first <= instruction < end)
    return _site(path, next(lines, None) or code.co_firstlineno, code, instruction)


def _site(path: str, line: int, code: CodeType, instruction: int) -> Site:
    name = getattr(code, "co_qualname", code.co_name)
    return Site(path, line, name.rpartition("<locals>.")[2], code, instruction)


def line_of(error: BaseException) -> tuple[str | None, int | None]:
    """The user's innermost line in the traceback of `error`."""
    found: tuple[str | None, int | None] = (None, None)
    traceback = error.__traceback__
    while traceback is not None:
        path = file_of(traceback.tb_frame)
        if is_user_file(path):
            found = path, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def local_names(frame: FrameType) -> list[tuple[str, Any]]:
    """The names and values of `frame`, without leaving references to them in it.

    Up to Python 3.12, `f_locals` of a function is a snapshot that the frame keeps from then on,
    with every object in it. It is emptied again, unless the program itself holds it.
    """
    snapshot = frame.f_locals
    # pytest keeps what an assertion compares under names that begin with "@".
    values = [item for item in snapshot.items() if not item[0].startswith(("__", "@"))]
    optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # References: the frame, `snapshot`, and the call that counts.
    if optimized and type(snapshot) is dict and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()
    return values


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(frame: FrameType | None, depth: int = 8) -> list[FrameType]:
    """Up to `depth` of the user's own frames, from `frame` outwards."""
    found: list[FrameType] = []
    while frame is not None and len(found) < depth:
        if is_users(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def user_chain() -> tuple[Site, ...]:
    """The places of up to eight of the user's own frames, the innermost first."""
    return tuple(site_of(frame) for frame in user_frames(sys._getframe(1)))


def file_of(frame: FrameType) -> str:
    """The file that the code of `frame` was read from."""
    return written_in(frame.f_code, frame.f_globals)


def written_in(code: CodeType, namespace: Mapping[str, Any]) -> str:
    """The file of `code`, which runs with the globals `namespace`.

    For a function that was pickled by value, its globals know the file if its code does not.
    Otherwise the code is `identified` for the process that it came from.
    """
    path = code.co_filename
    if path != DYNAMIC:
        return path
    known = namespace.get("__file__")
    return known if type(known) is str else identified(code)


def is_users(frame: FrameType) -> bool:
    """Whether the code of `frame` is the user's own."""
    return _kind(file_of(frame)) == "user"


def is_users_function(function: FunctionType) -> bool:
    """Whether a function written in Python is the user's own."""
    return _kind(written_in(function.__code__, function.__globals__)) == "user"


def is_users_class(kind: type) -> bool:
    """Whether a class is from a module of the user."""
    module = sys.modules.get(kind.__module__)
    return is_user_file(getattr(module, "__file__", None))


def is_user_file(path: str | None) -> bool:
    """Whether the code in `path` is the user's own, neither installed nor Python's."""
    return path is not None and _kind(path) == "user"


@packages.cached
def _kind(filename: str) -> str:
    if filename.startswith("<"):
        return "machinery" if filename.startswith(("<frozen", "<attrs", "<eval_with")) else "user"
    path = os.path.abspath(filename)
    if path.startswith(_OURS) or packages.is_machinery(path):
        return "machinery"
    if any(marker in path for marker in _INSTALLED):
        return "library"
    if path.startswith(_STDLIB):
        return "machinery"
    return "user"
