"""The file of a report, before the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gradguard.reports.file import check_writable


def test_a_rank_that_looks_makes_no_file_for_another_to_find(tmp_path: Path) -> None:
    opened: list[object] = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
    check_writable(tmp_path / "report.json")
    assert opened
    assert str(tmp_path / "report.json") not in map(str, opened)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_report_stays(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("earlier")
    check_writable(report)
    assert report.read_text() == "earlier"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written: it is a folder"):
        check_writable(tmp_path)
