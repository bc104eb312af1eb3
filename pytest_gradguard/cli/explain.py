"""``gradguard explain CODE``: one entry of the catalogue, for a terminal."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator

from pytest_gradguard.cli.streams import complain, write
from pytest_gradguard.pitfalls import Pitfall, find

__all__ = ["build_parser", "markdown", "run"]

_WIDEST = 88


def build_parser() -> argparse.ArgumentParser:
    """The parser of this subcommand's arguments."""
    parser = argparse.ArgumentParser(
        prog="gradguard explain",
        description="Explain one pitfall: what happens, why, how to fix it, with two programs.",
    )
    parser.add_argument("code", metavar="CODE", help="a code such as GG103, or a pitfall's name")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the entry. Returns 0, or 2 where there is no such pitfall (one line on stderr)."""
    try:
        pitfall = find(args.code)
    except ValueError as error:
        complain(f"gradguard explain: {error}")
        return 2
    width = max(min(_WIDEST, shutil.get_terminal_size().columns), 20)
    write("\n".join(_lines(pitfall, width)) + "\n")
    return 0


def markdown(pitfall: Pitfall) -> str:
    """The entry in Markdown, for an editor."""
    parts = [f"**{pitfall.code} {pitfall.name}** ({pitfall.severity.label})", pitfall.title]
    for heading, text in _sections(pitfall):
        parts += [f"**{heading}**", text]
    for heading, program in _programs(pitfall):
        parts += [f"**{heading}**", f"```python\n{program.rstrip()}\n```"]
    parts += ["**More**", "\n".join(f"- [{text}]({url})" for text, url in _links(pitfall))]
    return "\n\n".join(parts)


def _lines(pitfall: Pitfall, width: int) -> Iterator[str]:
    yield f"{pitfall.code} {pitfall.name} ({pitfall.severity.label})"
    yield pitfall.title
    for heading, text in _sections(pitfall):
        yield ""
        yield _wrapped(heading, width, "")
        yield _wrapped(text, width, "  ")
    for heading, program in _programs(pitfall):
        yield ""
        yield heading
        yield textwrap.indent(program.rstrip("\n"), "    ")
    yield ""
    yield "More"
    for text, url in _links(pitfall):
        yield f"  {text}: {url}"


def _sections(pitfall: Pitfall) -> Iterator[tuple[str, str]]:
    """The headings of the entry, each with its text."""
    yield "What happens", pitfall.happens
    yield "Why", pitfall.why
    yield "How to fix it", pitfall.fix
    for case, text in pitfall.other_advice.items():
        yield f"How to fix it: {case}", text
    yield "Reported by `gradguard lint`", pitfall.lint_note
    yield "Reported at run time", pitfall.runtime_note
    yield "When to silence it", pitfall.silence


def _programs(pitfall: Pitfall) -> tuple[tuple[str, str], ...]:
    return ("Bad", pitfall.bad), ("Good", pitfall.good)


def _links(pitfall: Pitfall) -> Iterator[tuple[str, str]]:
    """The links of the entry: the text and the address of each."""
    yield from ((link.text, link.url) for link in pitfall.links)
    yield "gradguard", pitfall.page


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
