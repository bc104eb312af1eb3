"""``gradguard rules``: every pitfall of the catalogue in one table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from pytest_gradguard.cli.streams import write
from pytest_gradguard.cli.words import table
from pytest_gradguard.pitfalls import Pitfall, catalogue

__all__ = ["build_parser", "run"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of this subcommand's arguments."""
    parser = argparse.ArgumentParser(
        prog="gradguard rules",
        description="List every pitfall: its code, its name, its severity, and who reports it.",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="how to write the list (default: %(default)s)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the list. Returns 0."""
    pitfalls = list(catalogue())
    if args.output_format == "json":
        write(json.dumps(_records(pitfalls), indent=2) + "\n")
    else:
        write("\n".join(_table(pitfalls)) + "\n")
    return 0


def _records(pitfalls: Sequence[Pitfall]) -> list[dict[str, object]]:
    return [
        {
            "code": pitfall.code,
            "name": pitfall.name,
            "severity": pitfall.severity.label,
            "title": pitfall.title,
            "lint": pitfall.lint is not None,
            "runtime": pitfall.runtime is not None,
            "in_this_version": {
                "lint": pitfall.lint is not None,
                "runtime": pitfall.runtime is not None,
            },
        }
        for pitfall in pitfalls
    ]


def _table(pitfalls: Sequence[Pitfall]) -> Iterator[str]:
    rows = [("code", "name", "severity", "lint", "runtime")]
    for pitfall in pitfalls:
        lint, runtime = (
            "no" if side is None else "yes" for side in (pitfall.lint, pitfall.runtime)
        )
        rows.append((pitfall.code, pitfall.name, pitfall.severity.label, lint, runtime))
    return table(rows)
