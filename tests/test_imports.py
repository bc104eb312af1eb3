"""The modules of each of our packages import each other in one direction."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import import_graph
import pytest


@pytest.mark.parametrize("package", ["pytest_gradguard", "gradguard_lint"])
def test_no_module_comes_back_to_itself(package: str) -> None:
    graph = import_graph.imported(Path(importlib.import_module(package).__file__).parent)
    assert len(graph) > 100
    assert not import_graph.circles(graph)


GUARD = "pytest_gradguard.runtime"
FLOORS = {
    "kernel": set(),
    "frameworks": {"kernel"},
    "pitfalls": {"kernel", "frameworks"},
    "integrations": {"kernel", "frameworks", "pitfalls"},
}
"""The rooms of the guard, and those that each may import: below it, and none above."""


def test_the_floors_of_the_guard_are_imported_downward() -> None:
    graph = _of_the_guard()
    assert {_room(name) for name in graph} == {*FLOORS, "starting", ""}
    arrows = {(_room(name), _room(target)) for name in graph for target in graph[name]}
    upward = {
        (upper, lower)
        for upper, lower in arrows
        if upper in FLOORS and lower not in FLOORS[upper] | {upper}
    }
    assert not upward
    assert ("frameworks", "kernel") in arrows
    assert ("integrations", "pitfalls") in arrows


def test_the_kernel_imports_no_library_and_names_no_pitfall() -> None:
    home = Path(importlib.import_module("pytest_gradguard.runtime").__file__).parent / "kernel"
    imported = set()
    for path in home.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant):
                assert not re.fullmatch(r"GG\d{3}", str(node.value)), path
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    packages = {name.partition(".")[0] for name in imported}
    assert len(packages) > 10
    assert packages <= {*sys.stdlib_module_names, "pytest_gradguard", "typing_extensions"}


def test_no_family_of_pitfalls_comes_back_to_itself() -> None:
    families: dict[str, set[str]] = {}
    for name, targets in _of_the_guard().items():
        families.setdefault(_family(name), set()).update(map(_family, targets))
    del families[""]
    graph = {family: found - {family, ""} for family, found in families.items()}
    assert len(graph) > 10
    assert any(graph.values())
    assert not import_graph.circles(graph)


def _of_the_guard() -> dict[str, set[str]]:
    """What the guard's modules import of it; a module that a string names counts as well."""
    home = Path(importlib.import_module("pytest_gradguard").__file__).parent
    graph = {
        name: targets
        for name, targets in import_graph.imported(home).items()
        if name.startswith(GUARD)
    }
    for name, targets in graph.items():
        path = home.parent / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for named in re.findall(rf"{GUARD}(?:\.\w+)+", path.read_text(encoding="utf-8")):
            targets |= {one for one in graph if one == named or named.startswith(f"{one}.")}
        targets &= graph.keys() - {GUARD}
    return graph


def _room(module: str) -> str:
    """The folder or module at the top of the guard that `module` is in."""
    return module.removeprefix(GUARD).lstrip(".").partition(".")[0]


def _family(module: str) -> str:
    """The family of pitfalls that `module` is in, if any."""
    home = f"{GUARD}.pitfalls."
    return module.removeprefix(home).partition(".")[0] if module.startswith(home) else ""


@pytest.mark.parametrize(
    ("source", "circle"),
    [
        ("import json, ours.side\nfrom ours import __version__\nfrom ours.part import other", ""),
        ("def function():\n    from ours.part import above", "above below"),
        ("if TYPE_CHECKING:\n    import ours.part.above", "above below"),
        ("from ours.part import NAME", "part above below"),
        ("from ours.side import above_all", "part above below above_all"),
    ],
)
def test_a_circle_is_seen(tmp_path: Path, source: str, circle: str) -> None:
    files = {
        "__init__": "from ours.part import above",
        "part/__init__": "def function():\n    from ours.part import above",
        "part/above": "from ours.part import below",
        "part/below": source,
        "part/other": "",
        "side/__init__": "",
        "side/above_all": "import ours.part.above",
    }
    for name, text in files.items():
        path = tmp_path / "ours" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = import_graph.circles(import_graph.imported(tmp_path / "ours"))
    assert {name.rpartition(".")[2] for name in found} == set(circle.split())
