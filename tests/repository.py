"""This repository, as a clone of it would be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def copy_to(folder: Path) -> Path:
    """Copy to `folder` what is committed, and what is about to be; nothing that was built here."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("the tests do not run from a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder
