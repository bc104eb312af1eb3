"""What docs/security.md says: what is opened, run, unpickled and written, and what is not."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import run_python

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
SOURCES = {
    path.relative_to(ROOT / home).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for home, package in ((".", "pytest_gradguard"), ("lint", "gradguard_lint"))
    for path in (ROOT / home / package).rglob("*.py")
    if "stubs" not in path.parts and "entries" not in path.parts
}
NETWORK = {"socket", "socketserver", "ssl", "http", "ftplib", "smtplib", "xmlrpc", "requests"}


def names(tree: ast.Module) -> Iterator[str]:
    """The modules that a module imports, and what it calls or extends, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"import {node.module}"
            yield from (f"import {node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            yield f"call {ast.unparse(node.func)}"
        elif isinstance(node, ast.ClassDef):
            yield from (f"class {ast.unparse(base)}" for base in node.bases)


def modules_with(pattern: str) -> set[str]:
    return {
        path
        for path, tree in SOURCES.items()
        if any(re.fullmatch(pattern, name) for name in names(tree))
    }


def test_no_module_speaks_to_a_network() -> None:
    assert len(SOURCES) > 400
    assert not modules_with(rf"import ({'|'.join(NETWORK)}|urllib\.request)(\..*)?")
    assert modules_with(r"import urllib\.parse(\..*)?")


def test_the_page_names_every_module_that_unpickles() -> None:
    found = modules_with(r"call (c?loud)?pickle\.loads?|class (c?loud)?pickle\.Unpickler")
    found |= modules_with(r"import (marshal|shelve|dill)|call torch\.load|call joblib\.load")
    assert found == {
        "pytest_gradguard/comparing/copies.py",
        "pytest_gradguard/comparing/notes.py",
        "pytest_gradguard/comparing/running.py",
        "pytest_gradguard/parallel/shipping.py",
    }
    assert {name for name in SOURCES if f"`{name}`" in PAGE} == found


def test_only_two_modules_run_code() -> None:
    assert modules_with("call (exec|eval)") == {
        "pytest_gradguard/cli/program.py",
        "pytest_gradguard/records.py",
    }


RECORDER = """
import json, os, re, runpy, sys
seen, parent = set(), os.getpid()
EVENTS = {"socket.bind", "socket.connect", "subprocess.Popen", "os.mkdir", "os.chmod",
          "tempfile.mkstemp", "tempfile.mkdtemp", "os.system", "os.exec", "os.posix_spawn"}

def note(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event in EVENTS or writes:
        seen.add(f"{event} {re.sub(r'[0-9a-z_]{6,}|[0-9]+', '*', str(args[0]))}")
    if event == "exec" and getattr(args[0], "co_filename", "").endswith("checked.py"):
        seen.add("exec checked.py")

sys.addaudithook(note)
sys.argv = sys.argv[1:]
try:
    if sys.argv[0] == "program.py":
        runpy.run_path("program.py", run_name="__main__")
    else:
        from pytest_gradguard.cli import main
        sys.exit(main(sys.argv))
finally:
    if os.getpid() == parent:
        print("SEEN", json.dumps(sorted(seen)))
"""
PROGRAM = """\
import multiprocessing
import torch
from joblib import Parallel, delayed


def double(x):
    return x * 2


if __name__ == "__main__":
    w = torch.ones(3, requires_grad=True)
    parts = Parallel(n_jobs=2, backend="multiprocessing")(delayed(double)(w) for _ in range(2))
    sum(parts).sum().backward()
    process = multiprocessing.get_context("fork").Process(target=double, args=(w,))
    process.start()
    process.join()
"""


def seen(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """What a command does that another program could notice, and what it prints."""
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    done = run_python("-c", RECORDER, *arguments, folder=folder, environment=environment)
    found = re.search("^SEEN (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return set(json.loads(found[1])), done.stdout + done.stderr


def test_a_guarded_program_opens_what_it_opens_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("joblib")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    alone, _ = seen(tmp_path, "program.py")
    guarded, said = seen(tmp_path, "run", "program.py")
    assert "GG103" in said
    assert guarded - alone == set()


def test_the_linter_writes_its_cache_and_runs_nothing(tmp_path: Path) -> None:
    text = f"{PROGRAM}\nopen('made', 'w').write('ran')\n"
    (tmp_path / "checked.py").write_text(text, encoding="utf-8")
    done, said = seen(tmp_path, "lint", "--jobs=1", "checked.py")
    assert "GG103" in said
    assert not (tmp_path / "made").exists()
    places = (f"{tmp_path}/.gradguard_cache", f"{tmp_path}/cache")
    patterns = [re.sub(r"[0-9a-z_]{6,}|[0-9]+", "*", place) for place in places]
    assert done
    assert not [one for one in done if not one.partition(" ")[2].startswith(tuple(patterns))]
