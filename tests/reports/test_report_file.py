"""The file of a report, before the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gradguard.reports.file import check_writable, write_page, write_report


def test_a_rank_that_looks_makes_no_file_for_another_to_find(tmp_path: Path) -> None:
    opened: list[object] = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
    check_writable(tmp_path / "report.json")
    assert opened
    assert str(tmp_path / "report.json") not in map(str, opened)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_report_stays(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    write_report(report, [])
    earlier = report.read_text()
    check_writable(report)
    assert report.read_text() == earlier


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("train.py", "print(1)\n"),
        ("Train.PY", ""),
        ("__init__.py", ""),
        ("new.ipynb", None),
        ("pyproject.toml", "[project]\n"),
        ("package.json", '{"schema": 1, "name": "gradguard"}\n'),
        ("page.html", "<!DOCTYPE html>\n<title>Mine</title>\n"),
        ("notes", "error: not one of ours\n"),
        ("tests.xml", '<?xml version="1.0"?>\n<testsuites name="pytest tests"/>\n'),
        ("list.json", "[1]\n"),
        ("weights.bin", "\0\udc80"),
    ],
)
def test_what_is_no_report_is_kept(tmp_path: Path, name: str, held: str | None) -> None:
    path = tmp_path / name
    if held is not None:
        path.write_text(held, errors="surrogateescape")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=rf"^\S*{name}: cannot be written: .*\(allowed: .*\)$"):
        check_writable(path)
    assert sorted(tmp_path.iterdir()) == before
    assert held is None or path.read_text(errors="surrogateescape") == held


def test_a_link_to_what_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "report.json").symlink_to("train.py")
    with pytest.raises(ValueError, match=r"\.py files are sources"):
        check_writable(tmp_path / "report.json")


@pytest.mark.parametrize("name", ["report", "findings.txt", "report.html"])
def test_a_report_takes_the_place_of_one_in_another_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for write in (write_page, write_report, write_page):
        check_writable(path)
        write(path, [])
    path.write_bytes(b"")
    check_writable(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written: it is a folder"):
        check_writable(tmp_path)
