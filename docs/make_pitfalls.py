"""Write the pages of all pitfalls, and the table in the README, from the catalogue.

``python docs/make_pitfalls.py``
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_gradguard.pitfalls import Pitfall, catalogue

FOLDER = Path(__file__).parent / "pitfalls"
README = FOLDER.parents[1] / "README.md"

_BEGIN = "<!-- The table is made by `python docs/make_pitfalls.py`; do not edit. -->\n"
_END = "<!-- The end of the table. -->\n"

_MADE = "<!-- Made by `python docs/make_pitfalls.py`; do not edit. -->"

_HEAD = f"""\
# Pitfalls

{_MADE}

Each pitfall has a code, which reports show and `# noqa: GG103` and `allow("GG103")` take.

- **error**: the result is wrong, or the program fails or hangs.
- **warning**: likely wrong, or a cost that people do not expect.
- **info**: worth knowing; hidden unless asked for.

Everything said here was seen to happen, with Python 3.11, torch 2.13 (CPU), TensorFlow 2.21 (CPU),
Keras 3.15, joblib 1.6, scikit-learn 1.9 and dask 2026.8 on Linux, except what needs a GPU: the
texts of GG201 to GG205 go beyond what a machine without one shows. The programs print what their
comments say.

| code | name | severity | |
| --- | --- | --- | --- |
"""

_FAMILIES = {
    "GG1": "Gradients",
    "GG2": "GPUs",
    "GG3": "Modes, threads and random numbers",
    "GG4": "TensorFlow, Keras and dask",
    "GG5": "torch.distributed",
    "GG9": "The linter's comments",
}


def pages() -> dict[str, str]:
    """The Markdown of every page, by the name of its file."""
    pitfalls = list(catalogue())
    made = {f"{p.code.lower()}.md": "\n".join(_page(p)) + "\n" for p in pitfalls}
    return {"index.md": "".join(_index(pitfalls)), **made}


def with_table(readme: str) -> str:
    """`readme` with the table of pitfalls as the catalogue has it now."""
    before, rest = readme.split(_BEGIN)
    after = rest.split(_END)[1]
    return before + _BEGIN + "\n".join(_table()) + "\n" + _END + after


def _table() -> Iterator[str]:
    yield "| code | pitfall | severity | lint | run time |"
    yield "| --- | --- | --- | --- | --- |"
    for p in catalogue():
        marks = " | ".join("yes" if side else "" for side in (p.lint, p.runtime))
        yield f"| [{p.code}]({p.page}) | {p.title} | {p.severity.label} | {marks} |"


def _index(pitfalls: list[Pitfall]) -> Iterator[str]:
    yield _HEAD
    for p in pitfalls:
        yield f"| [{p.code}]({p.code.lower()}.md) | {p.name} | {p.severity.label} | {p.title} |\n"
    for family, caption in _FAMILIES.items():
        of_it = [p.code.lower() for p in pitfalls if p.code.startswith(family)]
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
        yield "\n".join(of_it) + "\n```\n"


def _page(pitfall: Pitfall) -> Iterator[str]:
    code = pitfall.code
    yield f"# {code}: {pitfall.title}\n"
    yield f"{_MADE}\n"
    yield f"*{pitfall.severity.label}* · `{pitfall.name}`\n"
    yield f"## What happens\n\n{pitfall.happens}\n"
    yield f"## Why\n\n{pitfall.why}\n"
    yield f"## How to fix it\n\n{pitfall.fix}\n"
    if pitfall.cases:
        yield "Reports about these cases say instead:\n"
        yield "\n".join(f"- {one}: {advice}" for one, advice in pitfall.other_advice.items()) + "\n"
    yield f"Bad:\n\n```python\n{pitfall.bad}```\n"
    yield f"Good:\n\n```python\n{pitfall.good}```\n"
    yield "## Where it is reported\n"
    yield f"- `gradguard lint`: {pitfall.lint_note}"
    yield f"- `pytest --gradguard`, `gradguard run`: {pitfall.runtime_note}\n"
    yield f"## When to silence it\n\n{pitfall.silence}\n"
    yield "\n".join(_silencing(pitfall))
    yield "## More\n"
    yield from (f"- [{link.text}]({link.url})" for link in pitfall.links)


def _silencing(pitfall: Pitfall) -> Iterator[str]:
    code = pitfall.code
    if pitfall.lint is not None:
        yield f"- In source: `# noqa: {code}` or `# gradguard: ignore[{code}] reason` on the line."
    if pitfall.runtime is not None:
        yield f'- In a program: `with pytest_gradguard.allow("{code}", reason="…"):`.'
        yield f'- In a test: `@pytest.mark.gradguard(allow=["{code}"], reason="…")`.'
    yield f'- In a project: `ignore = ["{code}"]` under `[tool.gradguard]` in `pyproject.toml`.\n'


if __name__ == "__main__":
    made = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
