"""The command line of ``gradguard lint``."""

from __future__ import annotations

import argparse
import os

from pytest_gradguard.cli.words import at_least_one
from pytest_gradguard.settings import START_METHODS, python_version

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Refused", "build_parser", "check_options"]

_SEVERITIES = ("info", "warning", "error")
_FORMATS = ("text", "concise", "json", "github", "sarif", "gitlab", "junit")


class Refused(Exception):
    """The command line or the configuration cannot be used; the message is one line."""


class _Formatter(argparse.HelpFormatter):
    """Asks the terminal itself: argparse would import shutil for it, for each option anew."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    """The width of the terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size().columns or 80
    except (OSError, ValueError):
        return 80


class _Parser(argparse.ArgumentParser):
    """Takes options between paths, too, unless ``--`` says what are paths."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # `--add-noqa` takes a reason by `=` alone: what follows it is a path.
        end = args.index("--") if "--" in args else len(args)
        own = ["--add-noqa=" if arg == "--add-noqa" else arg for arg in args[:end]]
        if "--" in args:
            return super().parse_args([*own, *args[end:]], namespace)
        return self.parse_intermixed_args(own, namespace)

    def format_help(self) -> str:
        # argparse has no form for an option whose value is optional and comes by `=` alone.
        text, takes = super().format_help(), "--add-noqa[=REASON]"
        return text.replace("--add-noqa REASON  ", takes).replace("--add-noqa REASON", takes)


def build_parser() -> argparse.ArgumentParser:
    """The parser of this subcommand's arguments."""
    parser = _Parser(
        prog="gradguard lint",
        description="Check Python files and notebooks for gradients and GPUs at worker boundaries, "
        "without running them.",
        epilog="Exit status: 0 no findings; 1 findings; 2 the command line, the configuration "
        "or a file could not be used.",
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        default=["."],
        help="files and folders (default: the current folder); - reads standard input",
    )
    add = parser.add_argument_group("selecting findings").add_argument
    add("--select", metavar="CODES", action="append", help="only these codes, prefixes or names")
    add("--extend-select", metavar="CODES", action="append", help="these codes in addition")
    add(
        "--ignore",
        metavar="CODES",
        action="append",
        help="all but these codes, prefixes or names",
    )
    add(
        "--min-severity",
        choices=_SEVERITIES,
        help="the lowest severity to report (default: warning)",
    )
    add = parser.add_argument_group("selecting files").add_argument
    add(
        "--exclude",
        metavar="PATTERN",
        action="append",
        help="skip files that match, as in .gitignore, in addition to those of the configuration",
    )
    add(
        "--force-exclude",
        action="store_true",
        help="skip excluded files even if they are named on the command line",
    )
    add("--stdin-filename", metavar="NAME", help="the file name to use for standard input")
    add = parser.add_argument_group("the program's environment").add_argument
    add(
        "--target-version",
        metavar="3.X",
        type=_version,
        help="the Python version that the programs run on (default: the lowest that "
        "requires-python allows, else the running one)",
    )
    add(
        "--start-method",
        choices=START_METHODS,
        help="how processes start if the program does not choose (default: the default of the "
        "target version on this platform)",
    )
    add = parser.add_argument_group("output").add_argument
    add(
        "--output-format",
        choices=_FORMATS,
        default="text",
        help="how to write the findings (default: %(default)s)",
    )
    add("--output", metavar="FILE", help="write the findings to FILE")
    add("--statistics", action="store_true", help="print how often each code was found")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="when to use colour (default: %(default)s, on a terminal; NO_COLOR and FORCE_COLOR "
        "are respected)",
    )
    add("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    add = parser.add_argument_group("repairs").add_argument
    add("--fix", action="store_true", help="apply all safe repairs to the files")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="also apply repairs that may change what the program does",
    )
    add(
        "--diff",
        action="store_true",
        help="print what --fix would change, without changing it; exit with 1 if there is a change",
    )
    add(
        "--add-noqa",
        metavar="REASON",
        help="add a comment that silences each finding, with a reason or without",
    )
    add = parser.add_argument_group("other options").add_argument
    add("--config", metavar="FILE", help="the configuration to use instead of pyproject.toml")
    add(
        "--jobs",
        metavar="N",
        type=at_least_one,
        default=0,
        help="number of processes to use (default: chosen by the amount of work)",
    )
    add("--no-cache", action="store_true", help="do not read or write the cache")
    add(
        "--show-files",
        action="store_true",
        help="list the files that would be checked, and check none",
    )
    add(
        "--show-settings",
        action="store_true",
        help="show the settings that hold for these files, and check none",
    )
    return parser


def _version(text: str) -> tuple[int, int]:
    try:
        return python_version(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def check_options(args: argparse.Namespace) -> None:
    """Make sure that the options fit together.

    Raises:
        Refused: one of them cannot do what it says.
    """
    if "-" in args.paths and len(args.paths) > 1:
        raise Refused("- (standard input) cannot be given together with other paths")
    if args.stdin_filename is not None and args.paths != ["-"]:
        raise Refused("--stdin-filename needs the path -")
    if args.add_noqa is not None:
        for given, option in ((args.fix, "--fix"), (args.diff, "--diff")):
            if given:
                raise Refused(f"--add-noqa cannot be given together with {option}")
        if args.paths == ["-"]:
            raise Refused("--add-noqa writes to files, and cannot be given together with -")
        if not args.add_noqa.isprintable():
            raise Refused("--add-noqa takes a reason of one line")
    if args.show_files or args.show_settings:
        option = "--show-files" if args.show_files else "--show-settings"
        others = ["fix", "diff", "statistics", *(["show_settings"] if args.show_files else ())]
        for name in others:
            if getattr(args, name):
                other = f"--{name.replace('_', '-')}"
                raise Refused(f"{option} checks nothing, and cannot be given together with {other}")
    if args.statistics and args.output_format not in ("text", "concise"):
        raise Refused(
            f"--statistics has no effect on --output-format {args.output_format} "
            "(allowed: text, concise)"
        )
