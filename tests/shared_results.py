"""Results that take long to make, made once for all the processes of a test run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of pytest-xdist share, or this process's where there are none."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(folder: Path, key: str, produce: Callable[[], str]) -> str:
    """What `produce` returns. Of all the processes that share `folder`, the first one calls it."""
    result = folder / f"{key}.txt"
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not result.exists():
            said = produce()
            result.write_text(said, encoding="utf-8")
        return result.read_text(encoding="utf-8")
