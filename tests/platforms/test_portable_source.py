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
FOLDERS = ("/proc", "/dev/", "/sys/", "/etc/", "/usr/", "/tmp", "/var/")


def uses(source: str) -> Iterator[str]:
    """What `source` uses that not every platform has, and how it asks for the platform."""
    nodes = [*ast.walk(ast.parse(source))]
    imports = [one for node in nodes if isinstance(node, ast.Import) for one in node.names]
    modules = {one.asname: one.name for one in imports if one.asname}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}.{one.name}" if module else one.name for one in node.names]
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            names = [f"{modules.get(owner, owner)}.{node.attr}"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            of, name, *_ = node.args
            owner = ast.unparse(of)
            attribute = ast.literal_eval(name) if is_text(name) else ""
            names = [f"{modules.get(owner, owner)}.{attribute}"]
        elif isinstance(node, ast.Call) and imports_by_name(node):
            names = [ast.literal_eval(node.args[0])]
        elif isinstance(node, ast.Call) and opens_text(node):
            names = ["no encoding"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            names = ["a folder"] if text.startswith(FOLDERS) else []
        else:
            continue
        yield from filter(is_missing_somewhere, names)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def imports_by_name(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    return name in ("import_module", "__import__") and bool(call.args) and is_text(call.args[0])


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
        name in ("a folder", "no encoding")
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
        ("import os as system\nsystem.fork()", "os.fork"),
        ("import importlib\nimportlib.import_module('termios')", "termios"),
        ("__import__('resource')", "resource"),
        ("import os\nos.register_at_fork(before=f)", "os.register_at_fork"),
        ("import os\nlen(os.sched_getaffinity(0))", "os.sched_getaffinity"),
        ("from select import poll", "select.poll"),
        ("import mmap\nmmap.mmap(-1, 9, flags=mmap.MAP_PRIVATE)", "mmap.MAP_PRIVATE"),
        ("import sys\nsys.getdlopenflags()", "sys.getdlopenflags"),
        ("open(f'/proc/{process}/fd', 'rb')", "a folder"),
        ("os.listdir(b'/dev/shm')", "a folder"),
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
