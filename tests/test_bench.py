"""`make bench`: what is over its budget, and what was not measured, is said in one line each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from children import run_python

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench

    yield bench
    for name in ("bench", "lint_packages", "lint_speed", "pytest_startup", "scale"):
        sys.modules.pop(name, None)


def test_rows_over_budget_fail(bench, monkeypatch, capsys):
    def measured(names, repeat):
        assert {"off", "on"} == set(names)
        yield bench.Row("off", 1.30, 1.01)  # perhaps over, perhaps noise
        yield bench.Row("on", 9.00, 8.50)

    monkeypatch.setitem(bench.SECTIONS, "start", measured)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "start"])
    assert bench.main() == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setitem(bench.SECTIONS, "start", lambda names, repeat: iter([]))
    assert bench.main() == 1
    assert "start: 'on' was not measured" in capsys.readouterr().err


def test_a_budget_that_cannot_be_kept_fails_the_command(tmp_path: Path) -> None:
    """What is measured is measured here, too; a row is told with its figures."""
    row = '"pytest_gradguard beside nothing"'
    broken = tmp_path / "budget.toml"
    for limit, status in ((0.01, 1), (100, 0)):
        broken.write_text(f"[import]\n{row} = {limit}\n", encoding="utf-8")
        arguments = ("--only", "import", "--repeat", "2", "--budget", broken)
        done = run_python(BENCHMARKS / "bench.py", *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout.count("import: pytest_gradguard beside nothing") == 1
    assert not done.stderr


def test_a_row_that_costs_more_on_purpose_is_over(bench, monkeypatch, capsys, tmp_path):
    """The guard's start made slower in fact."""
    heavy = tmp_path / "heavy.py"
    heavy.write_text("sum(range(20_000_000))\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = tmp_path / "budget.toml"
    broken.write_text('[import]\n"heavy beside nothing" = 1.3\n', encoding="utf-8")
    arguments = ["--only", "import", "--repeat", "2", "--budget", str(broken)]
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    assert bench.main() == 1
    assert "over budget: import: 'heavy beside nothing' costs" in capsys.readouterr().err


@pytest.fixture
def packages(bench, monkeypatch, tmp_path):
    """The section for packages alone, with a small budget; what runs it with an index."""
    budget = tmp_path / "budget.toml"
    budget.write_text(
        '[packages]\nskrl = 1000\n"one file changed in skrl" = 1000\n"all of them" = 1000\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    arguments = ["--only", "packages", "--budget", str(budget)]
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    return bench


@pytest.fixture
def release(packages, tmp_path):
    """A downloaded release: two programs, of which one imports the module between them."""
    folder = packages.lint_packages.downloads() / "skrl-2.1.1" / "skrl"
    folder.mkdir(parents=True)
    program = "import torch\nfrom joblib import Parallel, delayed\n{}\n\n\ndef work(x):\n"
    program += "    return x * 2\n\n\nParallel(2)(delayed(work)(torch.ones(3)) for _ in range(2))\n"
    folder.joinpath("__init__.py").write_text("")
    folder.joinpath("alone.py").write_text(program.format(""))
    folder.joinpath("helper.py").write_text("import torch\n")
    folder.joinpath("uses.py").write_text(program.format("from skrl import helper"))
    return folder


def test_packages_that_cannot_be_downloaded_are_skipped(packages, monkeypatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert packages.main() == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1:] == ["packages: skipped, pip cannot download skrl==2.1.1"]


def test_packages_are_measured_cold_and_after_changes(packages, release, capsys):
    before = {path.name: path.read_bytes() for path in release.iterdir()}
    assert packages.main() == 0
    rows = [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        f"packages: {name}" for name in ("skrl", "one file changed in skrl", "all of them")
    ]
    assert {path.name: path.read_bytes() for path in release.iterdir()} == before


def test_every_section_has_budgets(bench):
    budget = bench.tomllib.loads((BENCHMARKS / "budget.toml").read_text())
    assert set(budget) == set(bench.SECTIONS)
    assert all(limit > 0 for rows in budget.values() for limit in rows.values())
