"""The cache: believed only where this user's linter wrote it, and never in the way."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from pytest_gradguard.platforms import HERE

FOUND = [("GG201", "a.py", 6)]
needs_posix = pytest.mark.skipif(not HERE.forks, reason="pipes, devices and owners of POSIX")


@pytest.fixture
def tree(project, worker):
    """A project whose findings are in the cache."""
    project.write("a.py", worker)
    assert project.codes() == FOUND
    return project


def entries(project):
    return list((project.root / ".gradguard_cache").rglob("*.json"))


def analysed(monkeypatch):
    """The paths that are analysed from here on."""
    from gradguard_lint import batch

    paths = []
    real = batch.analyse
    monkeypatch.setattr(
        batch,
        "analyse",
        lambda path, *args, **more: (paths.append(path), real(path, *args, **more))[1],
    )
    return paths


SHAPES = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "list": lambda text: "[]",
    "null": lambda text: "null",
    "number": lambda text: "3",
    "deep": lambda text: "[" * 100_000,
    "no fields": lambda text: "{}",
    "wrong fields": lambda text: json.dumps({"signature": [], "entry": {}}),
    "no findings": lambda text: json.dumps(
        {**json.loads(text), "entry": json.dumps({"used": {}, "absent": [], "result": []})}
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_entry_that_is_damaged_is_one_line_and_nothing_is_lost(tree, shape):
    (entry,) = entries(tree)
    entry.write_text(SHAPES[shape](entry.read_text()))
    ran = tree.lint(json_output=True)
    assert (ran.status, ran.codes) == (1, FOUND)
    (line,) = ran.err.splitlines()
    assert "entries that are damaged" in line
    assert tree.lint().err == ""  # it was made anew


@pytest.mark.parametrize(
    "kind",
    ["bytes", "folder", *(pytest.param(kind, marks=needs_posix) for kind in ("pipe", "link"))],
)
def test_an_entry_that_is_no_text(tree, kind):
    (entry,) = entries(tree)
    entry.unlink()
    if kind == "bytes":
        entry.write_bytes(b"\xff\x00\xfe")
    elif kind == "folder":
        entry.mkdir()
    elif kind == "pipe":
        os.mkfifo(entry)
    else:
        os.symlink("/dev/zero", entry)
    ran = tree.lint(json_output=True)
    assert (ran.status, ran.codes, len(ran.err.splitlines())) == (1, FOUND, 1)


def test_entries_of_somebody_else_are_not_believed(
    project, worker, monkeypatch, set_cache_home, tmp_path_factory
):
    """They hold what their linter found, or what they would like this one to find."""
    path = project.write("a.py", worker.replace("cuda", "cpu"))
    set_cache_home(str(tmp_path_factory.mktemp("theirs")))
    assert project.codes() == []
    theirs = project.root / ".gradguard_cache"
    assert len(entries(project)) == 1
    paths = analysed(monkeypatch)
    assert project.codes() == []
    assert paths == []
    set_cache_home(str(tmp_path_factory.mktemp("mine")))
    assert project.codes() == []
    assert paths == ["a.py"]
    assert theirs.is_dir()
    path.write_text(worker)
    assert project.codes() == FOUND


@needs_posix
def test_the_secret_is_the_users_own(tree, cache_home, monkeypatch):
    secret = cache_home / "gradguard" / "cache-secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.stat().st_size == 32
    before = secret.read_bytes()
    paths = analysed(monkeypatch)
    assert tree.codes() == FOUND
    assert paths == []
    secret.chmod(0o644)  # others may have read it
    assert tree.codes() == FOUND
    assert paths == ["a.py"]
    assert secret.read_bytes() != before
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["no home", "file", "short secret"])
def test_without_a_place_for_a_secret_there_is_no_cache(tree, cache_home, set_cache_home, kind):
    shutil.rmtree(cache_home / "gradguard")
    shutil.rmtree(tree.root / ".gradguard_cache")
    if kind == "no home":
        set_cache_home("relative/path")
    elif kind == "file":
        (cache_home / "gradguard").write_text("in the way")
    else:
        (cache_home / "gradguard").mkdir()
        (cache_home / "gradguard" / "cache-secret").touch(0o600)
        (cache_home / "gradguard" / "cache-secret").write_bytes(b"short")
    assert tree.codes() == FOUND
    assert (tree.root / ".gradguard_cache").exists() is (kind == "short secret")
    if kind == "short secret":
        assert (cache_home / "gradguard" / "cache-secret").stat().st_size == 32


def test_nothing_is_written_through_a_link(project, worker, tmp_path_factory):
    project.write("a.py", worker)
    outside = tmp_path_factory.mktemp("outside")
    os.symlink(outside, project.root / ".gradguard_cache")
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes) == (1, FOUND)
    assert ".gradguard_cache is a link; the cache is not used" in ran.err
    (project.root / ".gradguard_cache").unlink()
    (project.root / ".gradguard_cache").mkdir()
    for number in range(256):
        os.symlink(outside, project.root / ".gradguard_cache" / f"{number:02x}")
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes, len(ran.err.splitlines())) == (1, FOUND, 1)
    assert list(outside.iterdir()) == []


def test_a_file_in_the_place_of_the_cache(project, worker):
    project.write("a.py", worker)
    project.write(".gradguard_cache", "in the way")
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes) == (1, FOUND)
    assert ran.err.endswith(".gradguard_cache is not a folder; the cache is not used\n")


def test_the_cache_lies_beside_the_configuration(project, worker):
    project.write("one/pyproject.toml", "[tool.gradguard]\n")
    project.write("one/sub/a.py", worker)
    project.write("two/a.py", worker)
    project.lint()
    folders = sorted(path.parent.name for path in project.root.rglob(".gradguard_cache"))
    assert folders == ["one", project.root.name]
    assert (project.root / "one/.gradguard_cache/.gitignore").read_text() == "*\n"
