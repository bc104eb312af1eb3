"""The linter's layers know only what is below them, and the engine names no library."""

from __future__ import annotations

import ast
from pathlib import Path

import import_graph

import gradguard_lint
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
