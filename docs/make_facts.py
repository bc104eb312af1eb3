"""Write the table of facts to standard output, from the tests that prove them.

``python docs/make_facts.py > docs/facts.md``
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_TRUTH = Path(__file__).parents[1] / "tests" / "truth"
_SOURCE = "https://github.com/gradguard/pytest-gradguard/blob/main/tests/truth/"

_HEAD = """\
# Facts about autograd and workers

<!-- Made by `python docs/make_facts.py > docs/facts.md`; do not edit. -->

What gradguard reports rests on these facts about PyTorch, joblib, TensorFlow, Keras, dask and JAX.
A test proves each of them without gradguard, and fails when a release of a library changes it.
*Process workers* are those of joblib's loky and multiprocessing backends.
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for file in sorted(_TRUTH.glob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield f"## {(ast.get_docstring(tree) or file.stem).splitlines()[0].rstrip('.')}\n"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield _fact(node)
        yield f"\nProved by [{file.name}]({_SOURCE}{file.name}).\n"


def _fact(test: ast.FunctionDef) -> str:
    sentence = ast.get_docstring(test)
    assert sentence, f"{test.name} needs a docstring: the fact, as a sentence"
    return f"- {' '.join(sentence.split())}"


if __name__ == "__main__":
    print(page(), end="")
