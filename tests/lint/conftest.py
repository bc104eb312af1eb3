"""Shared by the linter's tests: running the real command on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


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

    def lint(self, *args: str, stdin: str | None = None, json_output: bool = False) -> Ran:
        command = [sys.executable, "-c", "import sys; from pytest_gradguard.cli import main; "
                   "sys.exit(main(['lint', *sys.argv[1:]]))"]  # fmt: skip
        extra = ["--output-format", "json"] if json_output else []
        done = subprocess.run(
            [*command, *extra, *args], cwd=self.root, input=stdin, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def codes(self, *args: str) -> list[tuple[str, str, int]]:
        return self.lint(*args, json_output=True).codes


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
