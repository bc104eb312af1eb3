"""Write the page of what the linter knows of libraries to standard output, from its rows.

``python docs/make_libraries.py > docs/libraries.md``
"""

from __future__ import annotations

from gradguard_lint.models.rows import STARTERS, Library, Row, libraries

_HEAD = """\
# What `gradguard lint` knows of libraries

<!-- Made by `python docs/make_libraries.py > docs/libraries.md`; do not edit. -->

Names by which work leaves the calling thread, and how their workers start. Your own pools and
wrappers are added with `[[tool.gradguard.models]]`, or, for everybody, as a module of
`lint/gradguard_lint/models/`.

| library | names | what they do | start method | methods |
| --- | --- | --- | --- | --- |"""

_PROCESSES = ("executor", "loader", "pool", "process", "spawn")
"""What starts processes as the program says, unless the row says otherwise."""


_BY_WORD = {
    "num_proc": (
        "`Dataset.map(…, num_proc=…)`, `Dataset.filter(…, num_proc=…)` | mapping | the program's"
    ),
    "run_in_executor": "`loop.run_in_executor(…)` of `asyncio` | one call | the executor's",
    "to_thread": "`asyncio.to_thread(…)` | one call | thread",
}
"""What hands out work by a word: how it is written, what it does, how its workers start."""


def page() -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD]
    for library in libraries():
        lines += [_line(library, row) for row in library.rows if row.does in STARTERS]
        lines += [f"| {library.tops[0]} | {_BY_WORD[word]} |  |" for word in library.starts_by]
    known = [top for library in libraries() if library.framework for top in library.tops]
    lines += ["", f"Frameworks: {', '.join(f'`{top}`' for top in sorted(known))}."]
    return "\n".join(lines) + "\n"


def _line(library: Library, row: Row) -> str:
    names = ", ".join(f"`{name}`" for name in row.names.split())
    methods = ", ".join(f"`{name}`" for name in sorted(row.methods))
    start = row.start or ("the program's" if row.does in _PROCESSES else "")
    return f"| {library.tops[0]} | {names} | {row.does} | {start} | {methods} |"


if __name__ == "__main__":
    print(page(), end="")
