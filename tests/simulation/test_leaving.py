"""The simulation is undone completely, and reaches nobody who has not asked for it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from children import Done, run_python

pytest.importorskip("torch")
pytest.importorskip("joblib")

LIMIT = 240


def run(*command: str, folder: Path | None = None) -> Done:
    return run_python(*command, folder=folder, limit=LIMIT, forked="torch")


@pytest.fixture(scope="module")
def facts() -> Any:
    done = run(str(Path(__file__).with_name("leaving.py")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_name_is_what_it_was(facts: Any) -> None:
    assert facts["left"] == []
    assert facts["left at the end"] == []
    assert facts["modes"] == 0


def test_workers_that_live_on_have_no_gpus_afterwards(facts: Any) -> None:
    assert facts["same workers"]
    assert facts["inside"] == [[True, True]] * 4
    assert facts["guarded"] == [[False, False]] * 4
    assert facts["after"] == [[False, False]] * 4


def test_this_process_and_its_threads_have_none_afterwards(facts: Any) -> None:
    assert facts["here"] is False
    assert facts["thread"] == [False]
    assert facts["kept"] == ["cpu", [1.0, 1.0]]


def test_it_begins_afresh_and_nests(facts: Any) -> None:
    assert facts["again"] == [1, False]
    assert facts["nested"] == [3, 1]


def test_nothing_is_imported_or_replaced_without_it() -> None:
    program = """
    import sys
    import torch
    from joblib import Parallel, delayed
    from pytest_gradguard import guard
    core = dict(vars(torch._C))
    with guard("record"):
        Parallel(2)(delayed(abs)(k) for k in range(2))
        torch.nn.Linear(1, 1)(torch.ones(1)).backward()
        assert dict(vars(torch._C)) == core
        assert not torch.overrides._get_current_function_mode_stack()
    print([name for name in sys.modules if name.startswith("pytest_gradguard.simulation")])
    """
    done = run("-c", textwrap.dedent(program))
    assert done.stdout.strip() == "[]", done.stderr


TESTS = """
import subprocess, sys
import torch

def test_here():
    assert torch.cuda.is_available() == {available}

def test_in_another_process():
    command = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("on", [True, False])
def test_a_run_of_tests_has_them_or_not(tmp_path: Path, on: bool, workers: str) -> None:
    (tmp_path / "test_x.py").write_text(TESTS.format(available=on))
    flags = ["--gradguard-simulate-gpu=1"] if on else ["--gradguard"]
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"-n{workers}", *flags)
    done = run(*command, folder=tmp_path)
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    done = run("-m", "pytest", f"--gradguard-simulate-gpu={value}", folder=tmp_path)
    assert done.returncode == 4
    assert f"{value!r} is not a number of GPUs" in done.stderr
    (tmp_path / "p.py").write_text("")
    done = run("-m", "pytest_gradguard", "run", f"--simulate-gpu={value}", "p.py", folder=tmp_path)
    assert done.returncode == 2
    assert f"{value!r} is not a number of GPUs" in done.stderr


def test_the_ini_key_does_the_same(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ngradguard_simulate_gpu = 3\n")
    (tmp_path / "test_x.py").write_text(
        "import torch\ndef test_x():\n    assert torch.cuda.device_count() == 3\n"
    )
    done = run("-m", "pytest", "-p", "no:cacheprovider", folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
    assert "3 simulated GPUs" in done.stdout


def test_conftest_files_see_them_as_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import torch\nSEEN = torch.cuda.is_available()\n")
    (tmp_path / "test_x.py").write_text(
        "from conftest import SEEN\ndef test_x():\n    assert SEEN\n"
    )
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--gradguard-simulate-gpu=1")
    done = run(*command, folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_guard_refuses_what_is_no_number() -> None:
    from pytest_gradguard import guard

    for value in (0, -1, True, "2"):
        with pytest.raises(ValueError, match="1 or more"), guard(simulate_gpu=value):  # type: ignore[arg-type]
            pass
