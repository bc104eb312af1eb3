"""Runs gradguard with other versions of what it works with: the sessions of nox.

One environment at a time, removed afterwards; what came of it is in `tests/recorded/versions.json`
and, for people, in `docs/versions.md`. Sessions whose Python is not on this machine are skipped.
uv makes an environment in seconds where it is on the path; pip, in minutes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tests/versions"))

import matrix

nox.options.envdir = ".venv/nox/cells"
nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_missing_interpreters = False


def run(session: nox.Session, cell: matrix.Cell, *arguments: str) -> None:
    """Make the environment of a cell, run it there, and remove it."""
    try:
        pip = ["--pre"] if cell.pre else []
        if cell.constrained:
            pip += ["-c", "constraints.txt"]
        session.install(*pip, *cell.requirements, "--editable", ".")
        session.run("python", "tests/versions/cell.py", cell.name, *arguments, *session.posargs)
    finally:
        shutil.rmtree(session.virtualenv.location, ignore_errors=True)


def declare(cell: matrix.Cell, tag: str, *arguments: str) -> None:
    """Declare the session of a cell."""

    @nox.session(python=cell.python, name=cell.name, tags=[tag])
    def session(session: nox.Session) -> None:
        run(session, cell, *arguments)


for one in matrix.cells():
    declare(one, "versions")
for one in matrix.corners():
    declare(one, "corners", "--only-check")
