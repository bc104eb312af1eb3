"""Which modules of a package of ours import which, read off their source."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path


def imported(home: Path) -> dict[str, set[str]]:
    """What each module of the package in `home` imports of it, in functions too.

    What is for type checkers alone counts as well.
    An import takes the packages along that it leads through, but for those that its module is in.
    The top package is left out: it gives the version, and names all else for type checkers. What is
    loaded by a name in a string is not seen.
    """
    sources = {}
    for path in home.rglob("*.py"):
        parts = path.relative_to(home.parent).with_suffix("").parts
        sources[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    graph = {}
    for name, source in sources.items():
        found = set()
        for target in _targets(source, sources):
            found |= {target, *_packages(target) - {name, *_packages(name)}}
        graph[name] = found & sources.keys() - {home.name}
    del graph[home.name]
    return graph


def _targets(source: str, modules: Collection[str]) -> set[str]:
    """What `source` imports: one of `modules` itself, where that is what it takes of a package."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _packages(module: str) -> set[str]:
    """The packages that `module` is in."""
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The modules of `graph` that come back to themselves, or lie between two that do."""
    left = graph
    while True:
        used = set().union(*left.values())
        inside = {n: names & left.keys() for n, names in left.items() if n in used}
        inside = {n: names for n, names in inside.items() if names}
        if inside == left:
            return left
        left = inside
