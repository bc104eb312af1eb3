"""Folders and runs that several files of tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_runs import Run, run_pytest
from situations import SITUATIONS

LISTENING = """
def pytest_warning_recorded(warning_message):
    said = f"{warning_message.category.__name__}: {warning_message.message}"
    with open("warnings.txt", "a") as stream:
        print(f"{warning_message.filename}:{warning_message.lineno}: {said}", file=stream)
"""


@pytest.fixture(scope="session")
def situations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of all situations."""
    folder = tmp_path_factory.mktemp("situations")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_situations.py").write_text(SITUATIONS)
    (folder / "conftest.py").write_text(LISTENING)
    return folder


@pytest.fixture(scope="session")
def plain_run(situations: Path) -> Run:
    """All situations in one process, with the default settings."""
    return run_pytest(
        situations,
        *("--gradguard", "-rA", "--junitxml=plain.xml"),
        *("--gradguard-report=plain.json", "--gradguard-html=plain.html"),
    )
