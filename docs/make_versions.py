"""Writes `docs/versions.md`: ``python docs/make_versions.py > docs/versions.md``.

What was run stands in `tests/recorded/versions.json`; what is to be run, in the matrix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/versions"))

import matrix  # noqa: E402

HEAD = """\
# Versions

<!-- Made by `python docs/make_versions.py` from what `make versions` recorded; do not edit. -->

The matrix has the oldest release that gradguard supports of each library, the highest of each major
version (where there is but one, two in between) and the newest, on Linux (x86-64). One library
varies at a time, on Python {usual} with the releases that the project is developed with; in
the corners, all of them are the oldest or the newest at once. The matrix is made from what the
package index offers: `make newest` fails once a library has a newer release.

`make versions` runs all of it, one environment at a time, and `make versions CELLS="oldest newest"`
some. `make corners` runs, in some minutes, two corners of what needs no framework: continuous
integration does that for every change, apart from the suite; once a week, it runs `make newest`,
the whole corners, and the newest pre-releases. `gradguard doctor` says what is installed, and what
is too old to be watched: of that the guard says so in one warning, and leaves it alone.

The free-threaded builds of Python (3.13t, 3.14t) have not been run yet; a corner for 3.14t is in
continuous integration. CPython 3.14.10 was run by hand on Linux, with torch 2.15, NumPy 2.5 and
joblib 1.6: the tests of the linter, `gradguard doctor`, the simulated platforms and the facts
about Python 3.14 pass. The guard cases and the tests of the plugin have not been run to their end
there.
"""


def page() -> str:
    """The text of the page."""
    recorded = json.loads((ROOT / "tests/recorded/versions.json").read_text(encoding="utf-8"))
    cells = matrix.cells()
    parts = [
        HEAD.format(usual=matrix.USUAL),
        "## Oldest\n",
        *_table(("library", "oldest", "newest in the matrix"), _oldest()),
        "\n## What was run\n",
        "Passed, skipped and failed are numbers of tests. Skipped is what a release does not\n"
        "have, such as joblib's generators before 1.3 and Keras's wrappers for scikit-learn\n"
        "before 3.8, and tests beside plugins that no cell installs. Up to torch 2.8, allowing\n"
        "TF32 on GPUs also sets the float32 matmul precision. The ordinary builds of torch, for\n"
        "GPUs, were run without a GPU.\n",
        *_table(
            ("cell", "Python", "with", "passed", "skipped", "failed"),
            (_row(cell, recorded[cell.name]) for cell in cells if cell.name in recorded),
        ),
        *_not_run([cell for cell in cells if cell.name not in recorded]),
        "\n## Which tests\n",
        *_table(("tests", "in the cells of"), _tests()),
    ]
    return "\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _oldest() -> Iterator[tuple[str, ...]]:
    known = matrix.recorded()
    pythons = matrix.supported_pythons()
    yield "Python", pythons[0], pythons[-1]
    for library in matrix.TESTS:
        releases = list(known[library])
        yield matrix.PACKAGES.get(library, library), releases[-1], releases[0]


def _row(cell: matrix.Cell, result: dict[str, Any]) -> tuple[str, ...]:
    versions = result["versions"]
    about = [name for name in matrix.TESTS if name in versions]
    if cell.constrained or len(cell.releases) == 1:
        about = [name for name, _ in cell.releases]
    having = ", ".join(f"{name} {versions[name]}" for name in about)
    counts = (str(result["passed"]), str(result["skipped"]), str(len(result["failed"])))
    return cell.name, result["python"], having, *counts


def _not_run(cells: list[matrix.Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.python in matrix.ABSENT:
            yield f"\nNot run, as there was no Python {cell.python}: {cell.name}."
    later = [cell.name for cell in cells if cell.python not in matrix.ABSENT]
    if later:
        yield f"\nIn the matrix and not run yet: {', '.join(later)}."


def _tests() -> Iterator[tuple[str, ...]]:
    by_tests: dict[tuple[str, ...], list[str]] = {}
    for library, tests in matrix.TESTS.items():
        by_tests.setdefault(tests, []).append(matrix.PACKAGES.get(library, library))
    by_tests.setdefault(matrix.ALL, []).append("the corners and the Pythons")
    for tests, libraries in by_tests.items():
        yield ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests), ", ".join(libraries)


if __name__ == "__main__":
    sys.stdout.write(page())
