"""Any layout: what the linter repairs stays Python and loses its findings; nothing else changes.

The programs are those that the linter's rules have as bad examples, as people might have written
them: with tabs, with other line ends, nested, with comments and breaks in odd places, renamed.
"""

from __future__ import annotations

import ast
import collections
import io
import json
import keyword
import random
import re
import tokenize
from collections.abc import Callable
from pathlib import Path

from linter import limited, lint
from program_pages import marked, rule_programs

# -- what is drawn ------------------------------------------------------------------------------


def laid_out(drawn: random.Random, sources: list[str]) -> bytes:
    """One of `sources`, written otherwise."""
    text = drawn.choice(sources)
    for change in drawn.sample(CHANGES, drawn.randint(1, 4)):
        other = change(drawn, text)
        if _is_python(other):
            text = other
    return drawn.choice(ENDINGS)(text)


def _is_python(text: str) -> bool:
    try:
        compile(text, "drawn", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _tabs(drawn: random.Random, text: str) -> str:
    return re.sub(r"(?m)^(?: {4})+", lambda found: "\t" * (len(found[0]) // 4), text)


def _width(drawn: random.Random, text: str) -> str:
    width = drawn.choice([1, 2, 3, 8])
    return re.sub(r"(?m)^(?: {4})+", lambda found: " " * (len(found[0]) // 4 * width), text)


_NOTES = ("# (", "# it's", '# """', "# noqa", "#", "# é …", "# type: ignore", "# fmt: skip")


def _comment(drawn: random.Random, text: str) -> str:
    """Comments behind lines, between them, and where parentheses are open."""
    lines = text.split("\n")
    for _ in range(drawn.randint(1, 4)):
        place = drawn.randrange(len(lines))
        note = drawn.choice(_NOTES)
        kept = list(lines)
        if drawn.random() < 0.5:
            lines[place] += f"  {note}"
        else:
            lines.insert(place, " " * drawn.choice([0, 4, 7]) + note)
        if not _is_python("\n".join(lines)):
            lines = kept
    return "\n".join(lines)


def _break(drawn: random.Random, text: str) -> str:
    """New lines behind commas and parentheses, with a comment now and then."""
    places = [found.end() for found in re.finditer(r"[(\[{,]", text)]
    for place in sorted(drawn.sample(places, min(len(places), drawn.randint(1, 4))), reverse=True):
        between = drawn.choice(["\n", "\n        ", "  # why\n    ", " \\\n  ", "\n\n# so\n "])
        other = text[:place] + between + text[place:]
        text = other if _is_python(other) else text
    return text


def _join(drawn: random.Random, text: str) -> str:
    """Two statements on a line."""
    lines = text.split("\n")
    places = list(range(len(lines) - 1))
    drawn.shuffle(places)
    for place in places[:5]:
        first, second = lines[place], lines[place + 1]
        if first.strip() and second.strip():
            other = "\n".join([*lines[:place], f"{first}; {second.strip()}", *lines[place + 2 :]])
            if _is_python(other):
                return other
    return text


_NESTS = (
    "def outer():\n{}\n\n\nouter()\n",
    "async def outer():\n{}\n",
    "class Outer:\n{}\n",
    "if True:\n{}\n",
    "try:\n{}\nfinally:\n    pass\n",
    "with open(__file__) as file:\n{}\n",
    "for _ in range(2):\n{}\n",
    "if __name__ == '__main__':\n{}\n",
    "if True:\n    try:\n{}\n    except ValueError: raise\n",
)


def _nest(drawn: random.Random, text: str) -> str:
    """The whole in a block, or all but its imports."""
    form = drawn.choice(_NESTS)
    indent = "        " if "\n    try" in form else "    "
    head, body = "", text
    if drawn.random() < 0.5:
        tree = ast.parse(text)
        first = next(
            (one for one in tree.body if not isinstance(one, (ast.Import, ast.ImportFrom))), None
        )
        if first is not None:
            lines = text.split("\n")
            number = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
            head, body = "\n".join(lines[: number - 1]), "\n".join(lines[number - 1 :])
    # The inside of a string that spans lines moves along: that is another program, but one.
    moved = "\n".join(f"{indent}{line}" if line else line for line in body.rstrip().split("\n"))
    return f"{head}\n{form.format(moved)}" if head else form.format(moved)


def _rename(drawn: random.Random, text: str) -> str:
    """Some of the program's own names, all of each."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError):
        return text
    own = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for name in drawn.sample(sorted(own), min(len(own), 2)):
        other = drawn.choice([f"_{name}", f"{name}_{name}", "näme", "l", f"{name}2"])
        if keyword.iskeyword(other) or any(token.string == other for token in tokens):
            continue
        text = re.sub(rf"\b{re.escape(name)}\b", other, text)
    return text


def _space(drawn: random.Random, text: str) -> str:
    """Blanks, form feeds and blank lines, which mean nothing."""
    lines = text.split("\n")
    for _ in range(3):
        place = drawn.randrange(len(lines))
        kept = list(lines)
        if drawn.random() < 0.5:
            lines[place] += drawn.choice([" ", "\t", "   "])
        else:
            lines.insert(place, drawn.choice(["", "    ", "\f"]))
        if not _is_python("\n".join(lines)):
            lines = kept
    return "\n".join(lines)


def _alias(drawn: random.Random, text: str) -> str:
    """A library under another name."""
    found = re.search(r"(?m)^import (torch|joblib|numpy|tensorflow)(?: as (\w+))?$", text)
    if found is None:
        return text
    old, new = found[2] or found[1], drawn.choice(["lib", "t", "_x"])
    text = text.replace(found[0], f"import {found[1]} as {new}", 1)
    return re.sub(rf"(?<![\w.]){old}\.", f"{new}.", text)


CHANGES: list[Callable[[random.Random, str], str]] = [
    *(_tabs, _width, _comment, _comment, _break, _break, _join, _nest, _nest, _rename, _space),
    _alias,
]
ENDINGS: list[Callable[[str], bytes]] = [
    *(lambda text: text.encode(),) * 4,
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.rstrip("\n").encode(),
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: b"# -*- coding: utf-8 -*-\n" + text.encode(),
    lambda text: text.replace("\n", "\r\n").rstrip().encode(),
]


# -- judging ------------------------------------------------------------------------------------


def wrong(source: bytes, folder: Path) -> str | None:
    """What is wrong with how a program is repaired; None: nothing."""
    path = folder / "layout.py"
    path.write_bytes(source)
    try:
        with limited():
            before = _codes(path)
            if not before:
                return None
            status, *said = lint(path, "--fix", "--unsafe-fixes", "--min-severity", "info")
            if status not in (0, 1):
                return f"exit status {status} with --fix: {said}"
            repaired = path.read_bytes()
            compile(repaired, "repaired", "exec", dont_inherit=True)
            if repaired == source:
                return None
            if new := _codes(path) - before:
                return f"new findings after repair: {dict(new)}"
            if _codes(path) == before:
                return "was changed, and has the same findings"
            if b"\r\n" in source and b"\n" in repaired.replace(b"\r\n", b""):
                return "its line ends are mixed now"
            if source.startswith(b"\xef\xbb\xbf") != repaired.startswith(b"\xef\xbb\xbf"):
                return "its byte order mark is gone"
            lint(path, "--fix", "--unsafe-fixes", "--min-severity", "info")
            if path.read_bytes() != repaired:
                return "a second --fix changes it again"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _codes(path: Path) -> collections.Counter[str]:
    _, shown, said = lint(path, "--output-format", "json", "--min-severity", "info")
    if not shown:
        raise ValueError(said)
    return collections.Counter(one["code"] for one in json.loads(shown)["findings"])


def bad_examples() -> list[str]:
    """The programs of the rules that have findings."""
    return [
        program.source
        for program in rule_programs()
        if marked(program.files) and len(program.files) == 1
    ]


def layouts(seeds: range, folder: Path) -> list[str]:
    """What is wrong with the programs of these numbers, which are left in `folder`."""
    sources = bad_examples()
    found = []
    for seed in seeds:
        source = laid_out(random.Random(seed), sources)
        what = wrong(source, folder)
        if what is not None:
            kept = folder / f"layout_{seed}.py"
            kept.write_bytes(source)
            found.append(f"{kept}: {what}")
    return found
