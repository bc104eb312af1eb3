"""``gradguard server``: the language server, for editors."""

from __future__ import annotations

import argparse
from typing import BinaryIO, cast

from pytest_gradguard.cli.streams import complain

__all__ = ["build_parser", "run"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of this subcommand's arguments."""
    parser = argparse.ArgumentParser(
        prog="gradguard server",
        description="Run the language server (Language Server Protocol) on standard input and "
        "output. Editors start it; docs/editors.md tells how.",
    )
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="talk on standard input and output, as it always does; many clients add this",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until the editor ends it.

    Returns 0, or 2 where pygls is not installed or standard input does not follow the protocol.
    """
    try:
        import pygls  # noqa: F401
    except ModuleNotFoundError:
        complain(
            "gradguard server: error: pygls is not installed; "
            "`pip install 'pytest-gradguard[lsp]'` installs it"
        )
        return 2
    from pytest_gradguard.cli.server.language_server import create
    from pytest_gradguard.cli.server.messages import Broken, Input

    try:
        create().start_io(cast("BinaryIO", Input()))
    except Broken as error:
        complain(f"gradguard server: error: standard input breaks the protocol: {error}")
        return 2
    return 0
