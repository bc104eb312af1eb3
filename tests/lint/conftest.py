"""Shared by the linter's tests: running the real command on real files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gradguard.cli import main
from pytest_gradguard.platforms import HERE


@dataclass
class Ran:
    """What the command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def codes(self) -> list[tuple[str, str, int]]:
        """Code, file and line of each finding, in the order given."""
        return [
            (item["code"], item["location"]["path"], item["location"]["line"])
            for item in self.json["findings"]
        ]


class Project:
    """A folder with files, and the command run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text, encoding="utf-8")
        return path

    def lint(self, *args: str, stdin: str | bytes = "", json_output: bool = False) -> Ran:
        """Run the command in this process, in the folder of the project."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        streams = [
            io.TextIOWrapper(io.BytesIO(part), encoding="utf-8") for part in (data, b"", b"")
        ]
        extra = ["--output-format", "json"] if json_output else []
        before = (os.getcwd(), sys.stdin, sys.stdout, sys.stderr)
        os.chdir(self.root)
        sys.stdin, sys.stdout, sys.stderr = streams
        try:
            status = main(["lint", *extra, *args])
        finally:
            folder, sys.stdin, sys.stdout, sys.stderr = before
            os.chdir(folder)
        for stream in streams:
            stream.flush()
        return Ran(status, *(stream.buffer.getvalue().decode() for stream in streams[1:]))

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the command in a process of its own."""
        options.setdefault("env", dict(os.environ))  # not what libraries set beside it
        command = [sys.executable, "-m", "gradguard_lint", *args]
        return subprocess.Popen(command, cwd=self.root, **options)

    def codes(self, *args: str) -> list[tuple[str, str, int]]:
        return self.lint(*args, json_output=True).codes


@pytest.fixture(autouse=True)
def start_method_of_linux(monkeypatch):
    """The programs of these tests are for Linux and Python 3.13 unless they name another."""
    monkeypatch.setattr(
        HERE, "start_method", lambda python: "forkserver" if python and python[1] > 13 else "fork"
    )


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, set_cache_home):
    """Where the user's own secret lies: not where that of whoever runs the tests does."""
    home = tmp_path_factory.mktemp("cache")
    set_cache_home(str(home))
    return home


@pytest.fixture
def set_cache_home(monkeypatch):
    """Has caches kept in another folder."""

    def set_home(folder):
        for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.setenv(name, folder)
        if HERE.name == "macOS":  # where no variable says it
            monkeypatch.setattr(HERE, "cache_folder", lambda: folder)

    return set_home


@pytest.fixture
def project(tmp_path):
    """An empty project folder."""
    return Project(tmp_path)


WORKER = """\
import torch
from joblib import Parallel, delayed


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""
"""A program with one finding: GG201 in line 6."""


@pytest.fixture
def worker():
    return WORKER
