"""Pages of example programs: Markdown, with a heading and a block of Python for each program.

The first block of a page, above its first heading of level two, holds imports. A program begins
with those lines of it whose names it uses and does not import itself. Lines ``# file: name.py``
begin the further files of a program. A comment ``# GG201`` marks a line that is reported. A
``diff`` block below a program is its repair, as `difference` writes it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RULES = Path(__file__).parents[1] / "lint" / "gradguard_lint" / "rules"


@dataclass(frozen=True)
class PageProgram:
    """One program of a page."""

    page: str
    title: str
    source: str
    repair: str = ""

    def __str__(self) -> str:
        return f"{self.page}: {self.title}"

    @property
    def code(self) -> str:
        """The code of the rule beside the page."""
        return self.page.upper()

    @property
    def files(self) -> dict[str, str]:
        """The text of each file by name, the program's own first."""
        parts = re.split(r"^# file: (\S+)\n", self.source, flags=re.MULTILINE)
        files = dict(zip(parts[1::2], parts[2::2], strict=True))
        return {"program.py": parts[0], **files} if parts[0] else files


def marked(files: dict[str, str]) -> set[tuple[str, int, str]]:
    """File, line and code (or ``info``) of each finding that a comment announces."""
    return {
        (name, number, code)
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if not (comment := line.partition("  # ")[2]).startswith("reveals: ")
        for code in re.findall(r"GG\d{3}|info", comment)
    }


def page_programs(page: Path) -> list[PageProgram]:
    """The programs of one page.

    Raises:
        ValueError: a block is not closed: what follows would be no program.
    """
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    if any(fences[1::2]) or not all(fences[::2]) or len(fences) % 2:
        raise ValueError(f"{page}: a block of a program is not closed")
    first, *parts = re.split(r"^##+ (.*)\n", text, flags=re.MULTILINE)
    imports = "".join(source for _, source in _blocks(first))
    found: list[PageProgram] = []
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        number = 0
        for language, text in _blocks(part):
            if language == "diff":
                last = found.pop()
                found.append(PageProgram(last.page, last.title, last.source, text))
                continue
            number += 1
            title = heading if number == 1 else f"{heading} ({number})"
            found.append(PageProgram(page.stem, title, _importing(imports, text)))
    return found


def rule_programs() -> Iterator[PageProgram]:
    """The programs of all rules, from the page beside each."""
    for page in sorted(RULES.glob("gg*.md")):
        yield from page_programs(page)


def difference(source: str, repaired: str) -> str:
    """The changed lines, each with the line above and below it; ``@@`` stands between places."""
    lines = difflib.unified_diff(source.splitlines(), repaired.splitlines(), n=1, lineterm="")
    shown = ["@@" if line.startswith("@@") else line.rstrip() for line in list(lines)[3:]]
    return "".join(f"{line}\n" for line in "\n".join(shown).strip("\n").splitlines())


def _blocks(part: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(python|diff)\n(.*?)^```", part, re.MULTILINE | re.DOTALL)


def _importing(imports: str, source: str) -> str:
    """`source`, each file of it with the lines of `imports` that it uses."""
    parts = re.split(r"^(# file: \S+\n)", source, flags=re.MULTILINE)
    return "".join(
        part if part.startswith("# file: ") else _used(imports, part) + part for part in parts
    )


def _used(imports: str, text: str) -> str:
    if not imports or not text:
        return ""
    nodes = list(ast.walk(ast.parse(text)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    lines = [
        line
        for line, node in zip(imports.splitlines(), ast.parse(imports).body, strict=True)
        if (_bound([node]) & used) - _bound(nodes)
    ]
    return "".join(f"{line}\n" for line in lines) + ("\n" if lines else "")


def _bound(nodes: list[ast.AST]) -> set[str]:
    """The names that the import statements among `nodes` bind."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
