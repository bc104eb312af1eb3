"""The linter's layers know only what is below them, and the engine names no library."""

from __future__ import annotations

import ast
from pathlib import Path

import import_graph

import gradguard_lint
from gradguard_lint.domain import payloads
from gradguard_lint.models.rows import libraries

HOME = Path(gradguard_lint.__file__).parent

LAYERS = ("rules", "models", "engine", "domain")


def test_layers_know_only_what_is_below():
    for name, names in import_graph.imported(HOME).items():
        layer = name.split(".")[1] if "." in name else ""
        if layer not in LAYERS:
            continue
        # Rules and models stand side by side; both stand on the engine and the domain.
        below = {*LAYERS[max(2, LAYERS.index(layer)) :], layer, "reading", "words"}
        if layer == "rules":
            below.add("fixes")  # what a rule states of repairs; it writes none
        for other in names:
            assert other.split(".")[1] in below, f"{name} imports {other}"


def test_the_engine_names_no_library():
    tops = {top for library in libraries() for top in library.tops} - {"sys", "os", "types"}
    allowed = {"copy", "functools", "contextlib"}
    for path in (HOME / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = {top for top in tops - allowed if node.value.split(".")[0] == top}
                assert not named, f"{path.name}:{node.lineno}: {node.value!r}"


def test_each_payload_is_recorded_and_read():
    classes = {
        name
        for name, value in vars(payloads).items()
        if isinstance(value, type) and issubclass(value, payloads.Payload)
    } - {"Payload"}
    tree = ast.parse((HOME / "domain" / "payloads.py").read_text())
    uses = {
        node.value
        for part in ast.walk(tree)
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "Uses"
        for node in ast.walk(part.value)
        if isinstance(node, ast.Constant)
    }
    assert len(classes) > 20
    assert len(uses) > 10
    recorded, read = _mentioned("engine", "models"), _mentioned("rules", "engine", "fixes")
    assert classes | uses <= recorded
    assert classes | uses <= read


def _mentioned(*layers: str) -> set[object]:
    """The names and the constants in the code of these layers."""
    return {
        node.id if isinstance(node, ast.Name) else node.value
        for layer in layers
        for path in (HOME / layer).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Name, ast.Constant))
    }
