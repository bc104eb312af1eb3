"""Callers of a file's functions in other files.

Functions that nothing in their file calls run with unknown arguments. If another checked file calls
one, that call is more precise, as if both were in one file. Installable packages have unknown
callers, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gradguard_lint.batch import Batch, Result, Task
from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.files import absolute
from gradguard_lint.project.patterns import relative
from gradguard_lint.project.target import set_method
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from gradguard_lint.raw import Raw

MOST = 32
"""The most programs that run only for the functions that they call."""

_INSTALLING = {
    "setup.py": (b"setup(",),
    "setup.cfg": (b"[metadata]", b"[options]"),
    "pyproject.toml": (b"[project]", b"[tool.poetry]"),
}
"""Files with installation metadata, and the text that shows it."""

_TEST = re.compile(r"(?:\A|/)(?:tests?/|conftest\.py\Z|test_[^/]*\Z|[^/]*_test\.py\Z)")
"""Test files, whose calls aren't typical."""


def analyse_with_callers(
    batch: Batch,
    tasks: Sequence[Task],
    results: dict[str, Result],
    importers: Callable[[Collection[str]], list[str]],
    task_of: Callable[[str], Task],
) -> None:
    """Analyse files with findings again if other files call their functions and nothing else does,
    or if importers set another start method.

    Args:
        batch: the analyser.
        tasks: the analysed files.
        results: results by path; those of further programs are added.
        importers: returns the checked files that import one of some files, nearest first.
        task_of: returns the task for a file not yet analysed.
    """
    found = [it.path for it in tasks if results[it.path].findings and not _is_installed(it)]
    # A run for loops only shows nothing about work in functions that it calls.
    in_full = {it.path: it for it in tasks if it.sought != "loops"}
    others = [_in_full(task_of(path)) for path in importers(found) if path not in in_full]
    programs = [replace(it, whole=True) for it in others if not _is_test(it)][:MOST]
    results |= batch.run(programs)
    in_full |= {it.path: it for it in programs}
    every = [*({it.path: it for it in tasks} | in_full).values()]
    called = _called(
        {absolute(path): results[path].calls for path, it in in_full.items() if not _is_test(it)}
    )
    again = []
    for task in every:
        if not results[task.path].findings:
            continue
        lines = called.get(absolute(task.path), frozenset())
        lines = frozenset() if _is_installed(task) else lines
        start = set_method(task_of(path).data for path in importers([task.path]))
        if lines or start:
            again.append(replace(task, called=lines, set_elsewhere=start))
    results |= batch.run(again)


def drop_test_findings(tasks: Sequence[Task], results: dict[str, Result]) -> None:
    """Drop findings in programs among `tasks` that only tests reach: programs set themselves up,
    for example their start method, which a test that calls a function skips."""
    programs = {absolute(it.path) for it in tasks if b"__main__" in it.data and not _is_test(it)}
    for task in tasks:
        found = results[task.path].findings
        if found and _is_test(task):
            kept = [raw for raw in found if programs.isdisjoint(_places(raw))]
            results[task.path] = replace(results[task.path], findings=kept)


def _places(raw: Raw) -> Iterator[str]:
    """The file of a finding, and that of its parallel call."""
    yield raw["path"]
    if "handed_out_at" in raw["details"]:
        yield raw["details"]["handed_out_at"]["path"]


def _in_full(task: Task) -> Task:
    """The task, with everything to search for."""
    return replace(task, sought="all") if task.sought == "loops" else task


def _is_test(task: Task) -> bool:
    name = relative(absolute(task.path), task.root)
    return _TEST.search(name) is not None


def _is_installed(task: Task) -> bool:
    """Whether a file is part of an installable package."""
    folder = os.path.dirname(absolute(task.path))
    if not os.path.exists(os.path.join(folder, "__init__.py")):
        return False
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    homes = [folder, os.path.dirname(folder)] if os.path.basename(folder) == "src" else [folder]
    return any(_installs(os.path.join(home, name)) for home in homes for name in _INSTALLING)


def _installs(path: str) -> bool:
    """Whether the file at `path` has installation metadata."""
    try:
        data = read(path)
    except Unusable:
        return False
    return any(mark in data for mark in _INSTALLING[os.path.basename(path)])


def _called(calls: Mapping[str, Iterable[tuple[str, int, int]]]) -> dict[str, frozenset[int]]:
    """Functions called from other files, by module-level code or otherwise uncalled functions."""
    anyhow: dict[str, set[int]] = {}
    for of_file in calls.values():
        for path, line, _ in of_file:
            anyhow.setdefault(path, set()).add(line)
    found: dict[str, set[int]] = {}
    for caller, of_file in calls.items():
        for path, line, own in of_file:
            if own not in anyhow.get(caller, ()):
                found.setdefault(path, set()).add(line)
    return {path: frozenset(lines) for path, lines in found.items()}
