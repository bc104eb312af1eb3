"""Everything that users read is in plain modern English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
AVOIDED = re.compile(
    r"nothing is said|without a word|\bfor ever\b|\bmend(s|ed|ing)?\b|\bis no number of|"
    r"has no like of|how truly|that are not there|\blay on\b|makes the graph of|\bsteps over\b|"
    r"comes? to nothing|\bsays? of\b|\bat hand\b|\bpretend(s|ed|ing)?\b",
    re.IGNORECASE,
)


def _literals(source: str) -> Iterator[tuple[int, str]]:
    """The strings of a program that are no docstrings, with their lines."""
    tree = ast.parse(source)
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def test_no_text_uses_words_that_need_a_second_reading():
    texts = [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for folder in ("pytest_gradguard", "lint/gradguard_lint")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in _literals(path.read_text(encoding="utf-8"))
        if " " in text
    ]
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        lines = page.read_text(encoding="utf-8").splitlines()
        texts += [(f"{page.relative_to(ROOT)}:{n}", line) for n, line in enumerate(lines, 1)]
    assert len(texts) > 2_000
    found = [(place, match[0]) for place, text in texts if (match := AVOIDED.search(text))]
    assert not found


def test_links_have_titles_and_not_names_of_files():
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    links = [
        (page.name, label)
        for page in pages
        for label in re.findall(r"(?<!!)\[([^\]\n]+)\][(\[]", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 200
    ours = [link for link in links if not link[1].endswith(".py")]  # the tests that prove a fact
    assert [link for link in ours if re.search(r"\.md$|^docs/|^[a-z_]+/[a-z_]", link[1])] == []
