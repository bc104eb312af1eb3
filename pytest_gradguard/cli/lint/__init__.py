"""``gradguard lint``: check source files without running them."""

from __future__ import annotations

import argparse
import os
import sys

from pytest_gradguard.cli.lint.options import Refused, build_parser, check_options
from pytest_gradguard.cli.streams import complain, write

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.configuration import Configurations
    from gradguard_lint.project.files import Trouble
    from gradguard_lint.run import Request
    from pytest_gradguard.cli.lint.selection import Selection
    from pytest_gradguard.reports.target import Target

__all__ = ["build_parser", "run"]


def run(args: argparse.Namespace) -> int:
    """Check what `args` names. Returns the exit status."""
    from pytest_gradguard.reports.target import TargetError

    try:
        _check_folder()
        check_options(args)
        if args.output is None:
            return _run(args, None)
        from pytest_gradguard.reports.target import Target

        with Target(args.output, over_reports=True) as target:
            return _run(args, target)
    except (Refused, TargetError) as error:
        complain(f"gradguard lint: error: {error}")
        return 2


def _run(args: argparse.Namespace, target: Target | None) -> int:
    from gradguard_lint.run import run as check
    from pytest_gradguard.cli.lint.output import Result, report
    from pytest_gradguard.cli.lint.selection import Selection

    selection = Selection.from_options(args)
    configurations = _configurations(args)
    request = _request(args, configurations, selection.info)
    if args.show_files or args.show_settings:
        return _show(args, target, request, selection)
    outcome = check(request)
    repairs = None
    if args.fix or args.diff or args.add_noqa is not None:
        from pytest_gradguard.cli.lint.repairs import Repairs

        repairs = Repairs(args, selection, configurations, request)
        make = repairs.made if args.add_noqa is None else repairs.silenced
        outcome = make(outcome)
    outcome.place_in_cells()
    errors = [*outcome.errors, *selection.problems(outcome.configurations)]
    for warning in outcome.warnings:
        complain(_line(warning, "warning"))
    for error in errors:
        complain(_line(error, "error"))
    if repairs is not None and args.diff:
        found = repairs.print_diff(target, outcome)
    else:
        shown, hidden = selection.divide(outcome.findings, configurations)
        found = bool(shown)
        if repairs is not None and request.stdin is not None:
            repairs.print_source()
        fixed = 0 if repairs is None else repairs.fixed
        result = Result(shown, hidden, errors, outcome, request.stdin, fixed, args.fix)
        report(args, result, target)
    if errors:
        return 2
    return 1 if found and not args.exit_zero else 0


def _show(
    args: argparse.Namespace, target: Target | None, request: Request, selection: Selection
) -> int:
    """Write which files would be checked, or how."""
    from gradguard_lint.run import chosen
    from pytest_gradguard.cli.lint.effective import described
    from pytest_gradguard.findings import display_path

    outcome = chosen(request)
    if args.show_files:
        lines = sorted(map(display_path, outcome.contents))
    else:
        lines = list(described(outcome, request, selection))
    for warning in outcome.warnings:
        complain(_line(warning, "warning"))
    for error in outcome.errors:
        complain(_line(error, "error"))
    text = "".join(f"{line}\n" for line in lines)
    (write if target is None else target.write)(text)
    return 2 if outcome.errors else 0


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise Refused(f"the current folder cannot be used: {error.strerror or error}") from None


def _configurations(args: argparse.Namespace) -> Configurations:
    from gradguard_lint.project.configuration import Configurations
    from pytest_gradguard.cli.lint.selection import split

    exclude = split(args.exclude)
    if args.config is None:
        return Configurations(exclude=exclude)
    from pytest_gradguard.settings import SettingsError, load

    try:
        return Configurations(args.config, load(args.config), exclude)
    except SettingsError as error:
        raise Refused(str(error)) from None


def _request(
    args: argparse.Namespace, configurations: Configurations, info: bool | None
) -> Request:
    from gradguard_lint.run import Request

    stdin = None
    if args.paths == ["-"]:
        stdin = (args.stdin_filename or "<stdin>", _standard_input())
    return Request(
        paths=() if stdin is not None else tuple(args.paths),
        configurations=configurations,
        force_exclude=args.force_exclude,
        jobs=args.jobs,
        cache=not args.no_cache and stdin is None,
        stdin=stdin,
        info=info,
        target_version=args.target_version,
        start_method=args.start_method,
    )


def _standard_input() -> bytes:
    from gradguard_lint.project.contents import Unusable, read_stream

    try:
        return read_stream(None if sys.stdin is None else sys.stdin.buffer)
    except Unusable as error:
        raise Refused(f"standard input {error}") from None


def _line(trouble: Trouble, kind: str) -> str:
    if not trouble.line:
        return f"gradguard lint: {kind}: {trouble.message}"
    from pytest_gradguard.findings import display_path, display_place, file_of

    if trouble.whole:
        return f"{display_path(trouble.path)}: {kind}: {trouble.message}"
    place = display_place(file_of(trouble.path, trouble.cell), trouble.line)
    return f"{place}: {kind}: {trouble.message}"
