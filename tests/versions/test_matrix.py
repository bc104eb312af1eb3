"""The matrix of versions: what it is made from, and what was recorded of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cell as cells
import matrix
import releases

PAGE = matrix.ROOT / "docs/versions.md"
DAYS = {"lib": {"2.1.0": ["3.10", "3.11"], "2.0.0": ["3.10"]}, "other": {"1.0": ["3.10"]}}


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (["1.0"], ["1.0"]),
        (["1.1", "1.0"], ["1.0", "1.1"]),
        (["1.2", "1.1.1", "1.1", "1.0"], ["1.0", "1.1.1", "1.2"]),
        (["1.10", "1.9", "1.5", "1.4", "1.3.1", "1.3"], ["1.3", "1.5", "1.9", "1.10"]),
        (["9.2", "9.0", "8.4", "8.0", "7.4.4", "7.4.0"], ["7.4.0", "7.4.4", "8.4", "9.2"]),
        (["2026.8", "2026.1", "2025.12", "2025.1"], ["2025.1", "2025.12", "2026.8"]),
    ],
)
def test_oldest_highest_of_each_major_and_newest(offered: list[str], taken: list[str]) -> None:
    assert matrix.chosen(offered) == taken


def test_the_matrix_ends_at_the_newest_and_begins_at_what_is_declared() -> None:
    known = releases.recorded()
    runs = [dict(cell.releases) for cell in matrix.cells()]
    oldest, newest = matrix.cells()[:2]
    for library, floor in releases.floors().items():
        last, first = next(iter(known[library])), dict(oldest.releases)[library]
        assert first in (floor, f"{floor}.0"), library
        assert dict(newest.releases)[library] == last, library
        alone = [run[library] for run in runs if list(run) == [library]]
        assert (alone[0], alone[-1]) == (first, last), library
    assert {"jinja2==3.0", "libcst==1.5"} <= set(oldest.requirements)


def test_each_cell_has_wheels_for_its_python() -> None:
    known = releases.recorded()
    for cell in (*matrix.cells(), *matrix.corners()):
        for library, release in cell.releases:
            assert cell.python in known[library][release], (cell.name, library)


def test_every_supported_python_is_in_it() -> None:
    pythons = {cell.python for cell in matrix.cells()}
    assert pythons >= set(matrix.supported_pythons())
    declared = (matrix.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    classified = re.findall(r"Python :: (3\.\d+)", declared)
    assert set(classified) <= pythons


def test_the_tests_that_cells_run_are_there() -> None:
    for cell in (*matrix.cells(), *matrix.corners()):
        assert [name for name in cell.tests if not (matrix.ROOT / name).is_file()] == []
    known = releases.recorded()
    assert [one for one, release in matrix.UNDECLARED if release not in known[one]] == []


def test_a_cell_takes_some_guard_cases() -> None:
    """Those are many more: a cell with none of them named would run them all."""
    for cell in matrix.cells():
        assert bool(cell.cases) == (matrix.GUARD_CASES in cell.arguments), cell.name
        assert not [one for one in cell.arguments if "/case_" in one]


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (DAYS, []),
        ({**DAYS, "other": {"1.1": ["3.10"], **DAYS["other"]}}, ["other 1.1 is out"]),
        ({**DAYS, "other": {"1.0": ["3.10", "3.14"]}}, ["other 1.0 now has wheels for 3.10, 3.14"]),
        ({**DAYS, "third": {"3": ["3.10"]}}, ["third 3 is out"]),
    ],
)
def test_a_release_that_has_come_is_named(now: releases.Releases, says: list[str]) -> None:
    found = releases.moved(DAYS, now)
    assert len(found) == len(says)
    assert all(line.startswith(start) for line, start in zip(found, says, strict=True))


def test_what_is_recorded_is_what_the_matrix_asks_for() -> None:
    recorded = cells.recorded()
    by_name = {cell.name: cell for cell in matrix.cells()}
    assert list(recorded) == [name for name in by_name if name in recorded]
    for name, result in recorded.items():
        cell = by_name[name]
        assert result["python"].startswith(f"{cell.python}."), name
        assert {library: result["versions"][library] for library, _ in cell.releases} == dict(
            cell.releases
        ), name
        assert result["tests"] == list(cell.tests), f"{name} was recorded with other tests"
        assert result["passed"] > 0, name
        assert result["failed"] == [], name


def test_the_page_is_what_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"__name__": "make_versions", "__file__": str(matrix.ROOT / "docs/make_versions.py")}
    source = (matrix.ROOT / "docs/make_versions.py").read_text(encoding="utf-8")
    exec(compile(source, names["__file__"], "exec"), names)
    assert names["page"]() == PAGE.read_text(encoding="utf-8")  # type: ignore[operator]


def test_a_record_is_written_in_the_order_of_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "RECORDED", tmp_path / "versions.json")
    first, second = (cell.name for cell in matrix.cells()[:2])
    cells.write({second: {"passed": 1}, "gone": {}, first: {"passed": 2}})
    assert list(json.loads((tmp_path / "versions.json").read_text())) == [first, second]


def test_only_what_failed_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ran(tests: list[str], cell: matrix.Cell, processes: str) -> cells.Outcomes:
        asked.extend(tests)
        outcomes = cells.Outcomes()
        outcomes.counts["passed"] = 1
        outcomes.failed = {"test_b"}
        return outcomes

    monkeypatch.setattr(cells, "ran", ran)
    here = {"python": cells.platform.python_version(), "versions": cells.versions()}
    before = {**here, "passed": 5, "skipped": 2, "failed": ["test_a", "test_b"]}
    cell = matrix.cells()[0]
    after = cells.run_failed(cell, before, "2")
    assert asked == ["test_a", "test_b"]
    assert after == {**before, "passed": 6, "failed": ["test_b"]}
    with pytest.raises(SystemExit, match="other versions"):
        cells.run_failed(cell, {**before, "python": "3.9.1"}, "2")
