"""Write the page of the command line from the parsers of its commands.

``python docs/make_command_line.py > docs/command_line.md``
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from pytest_gradguard.cli import COMMANDS

_HEAD = """\
# Command line

<!-- Made by `python docs/make_command_line.py > docs/command_line.md`; do not edit. -->

`gradguard COMMAND --help` shows the same in a terminal, and `gradguard --version` the version. The
flags of `pytest --gradguard` are in [pytest](pytest.md), the keys of `[tool.gradguard]` in
[configuration](configuration.md).

"""


def page() -> str:
    """The Markdown of the page."""
    return _HEAD + "\n".join(line for name in COMMANDS for line in _command(name)) + "\n"


def _command(name: str) -> Iterator[str]:
    module = importlib.import_module(f"pytest_gradguard.cli.{name}")
    parser: argparse.ArgumentParser = module.build_parser()
    yield f"## gradguard {name}\n"
    yield f"{parser.description}\n"
    for group in parser._action_groups:
        actions = [one for one in group._group_actions if one.help and one.dest != "help"]
        if actions:
            yield f"| {_title(group.title)} | |\n| --- | --- |"
            yield from (f"| {_form(action)} | {_help(parser, action)} |" for action in actions)
            yield ""
    if parser.epilog:
        yield f"{parser.epilog}\n"


def _title(title: str | None) -> str:
    return {"positional arguments": "argument", "optional arguments": "options"}.get(
        title or "", title or ""
    )


def _form(action: argparse.Action) -> str:
    """How the option is written, with what it takes."""
    if not action.option_strings:
        return f"`{action.metavar}`"
    takes = ""
    if action.dest == "add_noqa":  # argparse has no form for it, as in the help of the command
        takes = "[=REASON]"
    elif action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices or ())) + "}"
        takes = f" {choices if action.choices else action.metavar}"
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    known = {**vars(action), "prog": parser.prog}
    return (str(action.help) % known).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
