"""A program as the interpreter would run it: its code, and the `__main__` module it runs in."""

from __future__ import annotations

import argparse
import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType, TracebackType
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt

__all__ = ["Program", "ProgramNotFound", "add_program", "execute", "find_module", "find_script"]


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add ``(SCRIPT | -m MODULE) [ARG ...]`` to a command line."""
    parser.add_argument("-m", dest="as_module", action="store_true", help="PROGRAM is a module")
    # PARSER, not a positional and REMAINDER: that pair loses a `--` meant for the program.
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs=argparse.PARSER,
        help="the script, or with -m the module; what follows is passed to it",
    )


class ProgramNotFound(Exception):
    """There is no such program; the message is one line that names it."""


@dataclass(frozen=True)
class Program:
    """A program that was found, but of which nothing has run yet.

    Attributes:
        argv0: what it finds as ``sys.argv[0]``.
        first_path: what it finds as ``sys.path[0]``.
        file: the path of its source, for ``__file__``.
        spec: its import spec where it runs as a module, else None.
    """

    argv0: str
    first_path: str
    file: str
    spec: importlib.machinery.ModuleSpec | None = None

    def execute(self, arguments: Sequence[str]) -> None:
        """Run the program in a new `__main__` module, which stays in place afterwards.

        What joblib, pickle and multiprocessing ask about a main program they find there: functions
        are pickled by value, and workers import the program again by its path or name.

        Raises:
            BaseException: whatever the program raises; SyntaxError where it cannot be compiled.
        """
        sys.argv[:] = [self.argv0, *arguments]
        if not getattr(sys.flags, "safe_path", False):
            # It is the folder of `gradguard` that stands there, or the one of `python -m`.
            sys.path[0] = self.first_path
        main = ModuleType("__main__")
        main.__dict__.update(self._names())
        sys.modules["__main__"] = main
        exec(self._code(), main.__dict__)

    def _names(self) -> dict[str, Any]:
        names: dict[str, Any]
        if self.spec is None:
            loader = importlib.machinery.SourceFileLoader("__main__", self.file)
            names = {
                "__loader__": loader,
                "__spec__": None,
                "__package__": None,
                "__cached__": None,
            }
        else:
            names = {
                "__loader__": self.spec.loader,
                "__spec__": self.spec,
                "__package__": self.spec.parent,
                "__cached__": self.spec.cached,
            }
        return {
            "__name__": "__main__",
            "__file__": self.file,
            "__builtins__": builtins,
            "__annotations__": {},
            **names,
        }

    def _code(self) -> CodeType:
        if self.spec is not None:
            loader: Any = self.spec.loader
            code: CodeType = loader.get_code(self.spec.name)
            return code
        with io.open_code(self.file) as file:
            source = file.read()
        return compile(source, self.file, "exec", dont_inherit=True)


def execute(
    program: Program, arguments: Sequence[str], failed: Callable[[bool], object] = bool
) -> int:
    """Run the program as the interpreter would; return its status where it does not raise one.

    Args:
        program: the program.
        arguments: those of its command line.
        failed: told whether it has failed.

    Raises:
        SystemExit: what the program itself raised.
        KeyboardInterrupt: the same, and it has been shown.
    """
    try:
        program.execute(arguments)
    except SystemExit as end:
        attempt(failed, bool(end.code))
        raise  # the interpreter knows best what to do with it
    except BaseException as error:
        attempt(failed, True)
        # The uncaught exception, shown as the interpreter would: without the frames below the
        # program's own.
        frames = error.__traceback__
        error.__traceback__ = attempt(_own_frames, frames, instead=frames)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            # The interpreter ends a process by the signal, once it has ended everything else: what
            # started the process, such as a shell's loop, can tell that from any status.
            sys.excepthook = _all_but(error, sys.excepthook)
            raise
        return 1
    return 0


def _all_but(said: BaseException, hook: Callable[..., object]) -> Callable[..., object]:
    """`hook`, silent about the one error that has been shown."""

    def excepthook(kind: type[BaseException], error: BaseException, frames: object) -> None:
        if error is not said:
            hook(kind, error, frames)

    return excepthook


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """`traceback` from the program's first frame on; None where it never came so far."""
    package = os.path.dirname(os.path.abspath(__file__))
    while traceback is not None and _is_below(traceback.tb_frame.f_code.co_filename, package):
        traceback = traceback.tb_next
    return traceback


def _is_below(filename: str, package: str) -> bool:
    return filename.startswith((package + os.sep, "<frozen importlib", "<frozen runpy"))


def find_script(path: str) -> Program:
    """The program that ``python PATH`` would run: a file, or a folder or archive with a main.

    Raises:
        ProgramNotFound: there is none.
    """
    file = os.path.abspath(path)
    if os.path.isfile(file) and not file.endswith((".zip", ".pyz", ".whl")):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise ProgramNotFound(f"cannot read {path!r}: {error.strerror}") from None
        return Program(path, os.path.dirname(os.path.realpath(file)), file)
    if not os.path.exists(file):
        raise ProgramNotFound(f"cannot find {path!r}: there is no such file")
    spec = importlib.machinery.PathFinder.find_spec("__main__", [file])
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ProgramNotFound(f"cannot run {path!r}: it contains no __main__.py")
    return Program(path, file, spec.origin, spec)


def find_module(name: str) -> Program:
    """The program that ``python -m NAME`` would run.

    Its parent packages are imported, as Python does.

    Raises:
        ProgramNotFound: there is none.
    """
    here = os.getcwd()
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = here
    spec = _spec(name)
    if spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__", within=name)
    if spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ProgramNotFound(f"cannot run the module {name!r}: it has no source to run")
    return Program(spec.origin, here, spec.origin, spec)


def _spec(name: str, within: str | None = None) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ProgramNotFound(f"cannot find the module {name!r}: {error}") from None
    if spec is None:
        if within is not None:
            raise ProgramNotFound(
                f"cannot run the module {within!r}: it is a package without a __main__.py"
            )
        raise ProgramNotFound(f"cannot find the module {name!r}: there is no such module")
    return spec
