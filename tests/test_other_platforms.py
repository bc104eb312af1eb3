"""Without what Windows lacks: every module is imported, and each command does its work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import Done, run_python

pytest.importorskip("torch")

PROGRAM = """\
import threading
import torch
from joblib import Parallel, delayed


def double(x):
    return x * 2


def test_loss():
    w = torch.ones(3, requires_grad=True)
    parts = Parallel(n_jobs=2, backend="threading")(delayed(double)(w) for _ in range(2))
    thread = threading.Thread(target=double, args=(w,))
    thread.start()
    thread.join()
    sum(parts).sum().backward()
    print(w.grad.tolist())


if __name__ == "__main__":
    test_loss()
"""
LOSING = """\
import torch
from joblib import Parallel, delayed


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""
GUARD = ("-m", "pytest_gradguard")
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29"}


def elsewhere(folder: Path, *arguments: str, **environment: str) -> Done:
    script = Path(__file__).with_name("windows_names.py")
    return run_python(script, *arguments, folder=folder, environment=environment)


def test_every_module_is_imported(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, "import")
    assert done.returncode == 0, done.stderr


def test_a_program_runs_under_the_guard_alone_and_as_a_rank(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for environment in ({}, RANK):
        run = (*GUARD, "run", "--report=r.json", "program.py")
        done = elsewhere(tmp_path, *run, TMPDIR=str(tmp_path), **environment)
        assert (done.stdout, done.returncode) == ("[4.0, 4.0, 4.0]\n", 0)
        assert done.stderr == ("gradguard: no findings\ngradguard: report written to r.json\n")
    assert not list(tmp_path.glob("gradguard-ranks*"))


def test_the_linter_and_its_cache(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOSING)
    for _ in range(2):
        cached = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = elsewhere(tmp_path, *GUARD, "lint", "--output-format=json", **cached)
        assert done.stderr == ""
        assert [one["code"] for one in json.loads(done.stdout)["findings"]] == ["GG201"]
    assert elsewhere(tmp_path, *GUARD, "rules").returncode == 0


def test_tests_run_under_the_guard(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    plugins = ("-p", "no:platformdirs", "-p", "no:cacheprovider")
    done = elsewhere(tmp_path, "-m", "pytest", "--gradguard", *plugins)
    assert "gradguard: on" in done.stdout
    assert "1 passed" in done.stdout, done.stdout + done.stderr
