"""The engine, by constructs of the language: the programs stand in ``pages/*.md``.

Each block of Python is a program of its own. ``reveal(x)  # reveals: ...`` says what the engine
knows of a value there, and a comment at a line's end names the codes that are reported there
(severity warning and above, `info` marks what is below it); all other lines are silent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from program_pages import marked, page_programs

from gradguard_lint.domain.options import Options
from gradguard_lint.domain.values import (
    Bound,
    Class,
    Const,
    Function,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
)
from gradguard_lint.engine.interpreter import interpret
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.models.rows import registry
from gradguard_lint.models.transfers.meaning import Meaning
from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader
from gradguard_lint.reading.source import parse
from gradguard_lint.rules import codes, rules
from pytest_gradguard.pitfalls import get

PAGES = Path(__file__).parent / "pages"


def shown(value: Value) -> str:
    return " | ".join(sorted({atom_shown(atom) for atom in value.atoms}))


def atom_shown(atom: object) -> str:
    if isinstance(atom, Const):
        return repr(atom.value)
    if isinstance(atom, Tensor):
        return f"{atom.framework} tensor, {atom.grad}{', on the GPU' if atom.gpu else ''}"
    if isinstance(atom, Thing):
        return f"{atom.kind}{' on the GPU' if atom.gpu and atom.kind != 'device' else ''}"
    if isinstance(atom, Items):
        if atom.items is not None:
            return f"{atom.kind} of ({'; '.join(map(shown, atom.items))})"
        return f"{atom.kind} of {shown(atom.element)}"
    if isinstance(atom, Table):
        entries = "; ".join(f"{key!r}: {shown(item)}" for key, item in atom.entries)
        return f"dict of ({entries})"
    if isinstance(atom, (Function, Class)):
        return atom.name
    if isinstance(atom, Bound):
        return f"bound {atom.function.name}"
    if isinstance(atom, Instance):
        return f"a {atom.cls.name}"
    return "unknown" if isinstance(atom, Unknown) else type(atom).__name__


class Revealing(Meaning):
    """The models, and a function that shows what the engine knows of its argument."""

    def __init__(self) -> None:
        super().__init__(registry())
        self.revealed: dict[int, str] = {}

    def call(self, m, frame, node, name, args):
        if name == "reveal.reveal":
            self.revealed[node.lineno] = shown(m.filtered(args.positional[0]))
        return super().call(m, frame, node, name, args)


PROGRAMS = [program for page in sorted(PAGES.glob("*.md")) for program in page_programs(page)]


@pytest.mark.parametrize("raises", [15, 16, 40])
@pytest.mark.parametrize("handler", ["pass", "reveal(w)\n        raise"])
def test_what_many_raises_differ_in(raises, handler, tmp_path):
    """Each raise has its say, or what it differs in is anything: no alternative gets lost."""
    ways = "".join(
        f"        if n == {number}:\n            w = {max(0, number - raises + 2)}\n"
        "            raise ValueError\n"
        for number in range(raises)
    )
    known = raises <= 16 and handler == "pass"
    shows = f"reveals: {'0 | 1' if known else '0 | unknown'}"
    handler = handler.replace("reveal(w)", f"reveal(w)  # {shows}")
    end = f"    reveal(w)  # {shows}\n" if handler == "pass" else "    return w\n"
    source = (
        "import torch\nfrom multiprocessing import Pool\n\n\n"
        f"def main(n):\n    w = 0\n    try:\n{ways}"
        f"        w = 0\n    except ValueError:\n        {handler}\n{end}"
        "\n\nif __name__ == '__main__':\n    with Pool(2) as pool:\n"
        "        pool.map(main, range(3))\n"
    )
    check({"program.py": source}, tmp_path)


def said(path, meaning):
    """What the rules say of the program that `path` starts, by the paths of the files."""
    modules = Modules(str(path), Reader())
    entry = parse(path.read_bytes(), str(path), modules.name, modules.package)
    relevance = Relevance(entry, modules, meaning.registry.words)
    found = set()
    program = interpret(modules, meaning, Options(), relevance)
    for rule in rules(codes()):
        for report in rule.check(program):
            info = (report.severity or get(rule.CODE).severity.name.lower()) == "info"
            place = (report.site.path, report.site.line)
            found.add((*place, "info" if info else rule.CODE))
    return found


def check(files, folder):
    """What the engine reveals and the rules report is what the comments announce."""
    files = {
        name: "from reveal import reveal\n" * ("reveal(" in text) + text
        for name, text in files.items()
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    meaning = Revealing()
    found = set()
    for name in ["program.py"] if "program.py" in files else files:
        found |= said(folder / name, meaning)
    assert found == {(str(folder / name), line, code) for name, line, code in marked(files)}
    assert meaning.revealed == {
        number: shows
        for text in files.values()
        for number, line in enumerate(text.splitlines(), 1)
        if (shows := line.partition("  # reveals: ")[2])
    }


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_is_short_and_says_what_it_is_about(page):
    title, paragraph, *rest = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert not paragraph.startswith(("#", "```"))
    assert sum(part.count("\n") + 2 for part in (title, paragraph, *rest)) <= 800


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_of_the_pages(program, tmp_path):
    check(program.files, tmp_path)
