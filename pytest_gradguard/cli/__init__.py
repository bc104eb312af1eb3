"""The command `gradguard`: finds the subcommand and hands over; each is a module of its own.

A subcommand's module has ``build_parser() -> argparse.ArgumentParser`` and ``run(args) -> int``.
Only the module of the subcommand that was asked for is imported.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pytest_gradguard.cli.streams import StreamError, complain, flush, silence, write
from pytest_gradguard.suggestions import did_you_mean

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]

COMMANDS = {
    "lint": "check source files without running them",
    "run": "run a program under the guard and print what it found",
    "explain": "explain one code",
    "rules": "list all codes",
    "compare": "run a program with its workers and without them, and compare gradients",
    "server": "run the language server for editors",
    "doctor": "show versions, and what is watched in this environment",
}


_SO_MUCH = 20_000_000
"""So many new objects are made by no command that ends of itself, but by a faulty one."""

_BROKEN_PIPE = 141  # what a shell reports of a program that the signal SIGPIPE ended
_INTERRUPTED = 130  # and of one that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return its exit status.

    Raises:
        SystemExit: raised by the program that ``gradguard run`` runs; its own status.
        KeyboardInterrupt: the same.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["run"]:  # signals and streams are the program's own affair
            return _dispatch(arguments)
        with _interruptible():
            if argv is None:  # this process ends with the command: nothing need be searched then
                atexit.register(gc.freeze)
                if arguments[:1] != ["server"]:  # nor before, but where there is very much
                    gc.set_threshold(_SO_MUCH)
            status = _dispatch(arguments)
            flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has enough
        silence()
        return _BROKEN_PIPE
    except StreamError as error:
        silence()
        return _refuse("gradguard", str(error))
    except KeyboardInterrupt:
        if arguments[:1] == ["run"]:
            raise
        complain("gradguard: interrupted")
        return _INTERRUPTED


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C. Of a KeyboardInterrupt itself Python remembers that it passed through ``exec``, as in
    the making of a dataclass, and ends the process by the signal instead of with our status."""


@contextmanager
def _interruptible() -> Iterator[None]:
    def interrupted(*_: object) -> NoReturn:
        raise _Interrupted

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else's, or ignored
        return
    try:
        signal.signal(signal.SIGINT, interrupted)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        write(_usage() + "\n")
        return 0
    if name in ("-V", "--version"):
        from pytest_gradguard import __version__

        write(f"gradguard {__version__}\n")
        return 0
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        said = f"unknown {kind} {name!r}" if name else "no command given"
        allowed = ("--help", "--version") if name.startswith("-") else COMMANDS
        meant = did_you_mean(name, allowed)
        return _refuse("gradguard", f"{said}{meant} (allowed: {', '.join(allowed)})")
    module = importlib.import_module(f"{__name__}.{name}")
    parser: argparse.ArgumentParser = module.build_parser()
    parser.prog = f"gradguard {name}"
    parser.error = _one_line_error(parser)  # type: ignore[method-assign]
    parser.print_help = lambda file=None: write(parser.format_help())  # type: ignore[method-assign]
    try:
        args = parser.parse_args(arguments[1:])
    except SystemExit as end:  # --help, or a command line that is not usable
        return end.code if isinstance(end.code, int) else 0
    status: int = module.run(args)
    return status


_UNRECOGNIZED = "unrecognized arguments: "


class _one_line_error:
    """Stands in for `ArgumentParser.error`, which prints the whole usage before the reason."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def __call__(self, message: str) -> NoReturn:
        hint = self._hint(message)
        help_ = f"see {self._parser.prog} --help"
        raise SystemExit(_refuse(self._parser.prog, f"{message}{hint} ({help_})"))

    def _hint(self, message: str) -> str:
        """A suggestion, if `message` is about an unknown option."""
        _, unknown, words = message.partition(_UNRECOGNIZED)
        if not unknown:
            return ""
        name = words.split()[0].partition("=")[0]
        known = [option for action in self._parser._actions for option in action.option_strings]
        if meant := did_you_mean(name, known):
            return meant
        has_program = any(action.dest == "program" for action in self._parser._actions)
        return ": options of the program go after its name" if has_program else ""


def _refuse(prog: str, message: str) -> int:
    complain(f"{prog}: {message}")
    return 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "usage: gradguard [-h] [--version] COMMAND ...\n\n"
        "Finds gradients that joblib, processes and threads lose silently.\n\n"
        f"commands:\n{commands}\n\n"
        "`gradguard COMMAND --help` shows the options of one of them."
    )
