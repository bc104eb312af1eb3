"""What the plugin imports: next to nothing while it is off, and no framework ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_runs import run_pytest

HEAVY = {"torch", "tensorflow", "joblib", "numpy", "libcst", "rich", "cupy", "sklearn"}

# Other plugins are kept out: what they import is not what is asked here.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that are there once an empty test runs, and at the end of the run."""
    (folder / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure(config):\n"
        "    open('modules.txt', 'w').write('\\n'.join(sys.modules))\n"
    )
    (folder / "test_empty.py").write_text("def test_nothing():\n    pass\n")
    run = run_pytest(folder, "-p", "pytest_gradguard.plugin", *arguments, environment=ALONE)
    assert run.status == pytest.ExitCode.OK, run.text
    return set((folder / "modules.txt").read_text().split())


def test_off_imports_the_options_only(tmp_path: Path) -> None:
    modules = imported(tmp_path)
    ours = {name for name in modules if name.startswith("pytest_gradguard")}
    assert ours == {f"pytest_gradguard{part}" for part in ("", ".aside", ".plugin")}
    assert not modules & HEAVY


def test_on_imports_no_framework(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--gradguard", "--gradguard-report=report.json")
    assert "pytest_gradguard.runtime" in modules
    assert not modules & HEAVY


def test_our_modules_are_not_rewritten(tmp_path: Path) -> None:
    """Half of the start would go into that; and no finder of ours stays behind."""
    (tmp_path / "test_loaders.py").write_text(
        "import sys\n"
        "from importlib.machinery import SourceFileLoader\n"
        "def test_of_the_guard():\n"
        "    import pytest_gradguard.runtime.pitfalls.lost.gg101\n"
        "    ours = {name: one for name, one in sys.modules.items()\n"
        "            if name.startswith('pytest_gradguard.runtime.')}\n"
        "    assert len(ours) > 15\n"
        "    assert {type(one.__loader__) for one in ours.values()} == {SourceFileLoader}\n"
        "def test_that_is_rewritten():\n"
        "    assert type(__loader__) is not SourceFileLoader\n"
    )
    (tmp_path / "run.py").write_text(
        "import sys, pytest\n"
        "status = pytest.main(['-p', 'pytest_gradguard.plugin', '--gradguard'])\n"
        "left = [one for one in sys.meta_path if 'gradguard' in type(one).__module__]\n"
        "sys.exit(f'{left} is left' if left else int(status))\n"
    )
    command = [sys.executable, "run.py"]
    environment = {**os.environ, **ALONE}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_on_waits_for_libraries_without_what_watches_them(tmp_path: Path) -> None:
    """Declarations are there; what they name comes with the library, findings with the first."""
    modules = imported(tmp_path, "--gradguard")
    home = "pytest_gradguard.runtime.integrations"
    for library in ("joblib", "dask", "ray", "loader"):
        assert {name for name in modules if name.startswith(f"{home}.{library}")} == {
            f"{home}.{library}"
        }


def test_on_and_nothing_found_leaves_the_report_layout_alone(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--gradguard")
    assert "pytest_gradguard.plugin.failure" not in modules
    assert "pytest_gradguard.plugin.summary" not in modules


def test_on_and_nothing_found_leaves_findings_alone(tmp_path: Path) -> None:
    """In a process of its own: the warm one has `multiprocessing`, which is watched."""
    kernel = "pytest_gradguard.runtime.kernel"
    wrong = {"pytest_gradguard.findings", f"{kernel}.calls", f"{kernel}.evidence"}
    (tmp_path / "conftest.py").write_text(
        f"import sys\ndef pytest_unconfigure(config):\n    assert not {wrong} & set(sys.modules)\n"
    )
    (tmp_path / "test_empty.py").write_text("def test_nothing():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "pytest_gradguard.plugin", "--gradguard"]
    environment = {**os.environ, **ALONE}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
