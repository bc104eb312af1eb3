"""What only some platforms have stands in `pytest_gradguard/platforms`, and nowhere else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import missing_names
import pytest

import gradguard_lint
import pytest_gradguard
from pytest_gradguard.platforms import HERE

HOMES = [Path(package.__file__).parent for package in (pytest_gradguard, gradguard_lint)]
ASKS = {"sys.platform", "os.name", "platform.system", "os.uname", "platform.machine"}


def uses(source: str) -> Iterator[str]:
    """What `source` uses that not every platform has, and how it asks for the platform."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}.{one.name}" if module else one.name for one in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            owner, name, *_ = node.args
            names = [f"{ast.unparse(owner)}.{ast.literal_eval(name)}"] if is_text(name) else []
        elif isinstance(node, ast.Call) and opens_text(node):
            names = ["no encoding"]
        elif is_text(node) and ast.literal_eval(node).startswith("/proc"):
            names = ["/proc"]
        else:
            continue
        yield from filter(is_missing_somewhere, names)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text, in the encoding that a platform has by default."""
    name = ast.unparse(call.func)
    kind = name.rpartition(".")[2]
    if kind in ("read_text", "write_text"):
        return not any(one.arg == "encoding" for one in call.keywords) and len(call.args) < (
            1 if kind == "read_text" else 2
        )
    modes = [ast.literal_eval(mode) for mode in call.args[1:2] if is_text(mode)]
    named = {one.arg for one in call.keywords}
    return name == "open" and not named & {"encoding", "mode"} and "b" not in "".join(modes)


def is_missing_somewhere(name: str) -> bool:
    module, _, attribute = name.partition(".")
    return (
        name in ("/proc", "no encoding")
        or name in ASKS
        or any(
            missing_names.lacks_module(one, module) or missing_names.lacks(one, module, attribute)
            for one in missing_names.PLATFORMS
        )
    )


def test_nothing_but_the_platforms_asks_for_the_platform() -> None:
    files = [path for home in HOMES for path in home.rglob("*.py")]
    own = [path for path in files if path.parent.name == "platforms"]
    assert len(own) == 6
    assert any(list(uses(path.read_text(encoding="utf-8"))) for path in own)
    found = {
        (path.name, use)
        for path in files
        if path not in own and "stubs" not in path.parts
        for use in uses(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fcntl", "fcntl"),
        ("from os import fork, getpid", "os.fork"),
        ("import os\nos.killpg(1, 2)", "os.killpg"),
        ("import os\nhasattr(os, 'getuid')", "os.getuid"),
        ("import os\ngetattr(os, 'O_NOFOLLOW', 0)", "os.O_NOFOLLOW"),
        ("import signal\nsignal.signal(signal.SIGUSR1, f)", "signal.SIGUSR1"),
        ("import sys\nx = sys.platform", "sys.platform"),
        ("open(f'/proc/{process}/fd', 'rb')", "/proc"),
        ("open(path)", "no encoding"),
        ("path.write_text(text)", "no encoding"),
        ("open(path, 'rb'), open(path, encoding='utf-8'), path.read_text('utf-8')", ""),
        ("import os, signal\nos.open(a, os.O_RDONLY)\nsignal.SIGINT\nos.getpid()", ""),
    ],
)
def test_a_use_is_seen(source: str, expected: str) -> None:
    assert list(uses(source)) == [expected] * bool(expected)


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux lacks")
def test_nothing_is_missing_on_linux() -> None:
    assert HERE.missing() == []
