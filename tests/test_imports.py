"""The modules of each of our packages import each other in one direction."""

from __future__ import annotations

import importlib
from pathlib import Path

import import_graph
import pytest


@pytest.mark.parametrize("package", ["pytest_gradguard", "gradguard_lint"])
def test_no_module_comes_back_to_itself(package: str) -> None:
    graph = import_graph.imported(Path(importlib.import_module(package).__file__).parent)
    assert len(graph) > 100
    assert not import_graph.circles(graph)


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
