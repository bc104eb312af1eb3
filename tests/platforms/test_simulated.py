"""gradguard on macOS and Windows, simulated: every module is imported, each command does its work.

`sitecustomize` makes a child process, and those that it starts, believe it.
"""

from __future__ import annotations

import json
import sys
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


def loss(w):
    return (w * 2).sum()


def test_loss():  # \u2192 loses its gradient
    w = torch.ones(3, requires_grad=True)
    sum(Parallel(n_jobs=2)(delayed(loss)(w) for _ in range(2))).backward()
"""
IN_A_PROCESS = """\
import multiprocessing
import torch


def backward(w):
    (w * 2).sum().backward()


if __name__ == "__main__":
    w = torch.ones(2, requires_grad=True)
    process = multiprocessing.Process(target=backward, args=(w,))
    process.start()
    process.join()
    torch.optim.SGD([w], 0.1).step()
"""
FORKING = """\
import multiprocessing
import torch


def work(x):
    return torch.ones(300, 300).mm(torch.ones(300, 300)).sum().item() * x


if __name__ == "__main__":
    torch.ones(300, 300).mm(torch.ones(300, 300))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(2)))
"""
IMPORT_ALL = """\
import pkgutil
import gradguard_lint, pytest_gradguard

count = 0
for package in (pytest_gradguard, gradguard_lint):
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=print):
        others = info.name.startswith("pytest_gradguard.platforms.")
        if others or ".stubs" in info.name or info.name.endswith("__main__"):
            continue
        try:
            __import__(info.name)
        except ImportError as error:
            optional = ("IPython", "pygls", "cupy", "lsprotocol", "ightning", "ransformers")
            assert any(name in str(error) for name in optional), (info.name, error)
        count += 1
assert count > 500, count
"""
GUARD = ("-m", "pytest_gradguard")
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29"}
TOLD = {"darwin": "GG303: a forked worker", "win32": "no process is forked"}


@pytest.fixture(params=["darwin", "win32"] if sys.platform == "linux" else [sys.platform])
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run_on(platform: str, folder: Path, *arguments: str, **environment: str) -> Done:
    if platform != sys.platform:
        environment["GRADGUARD_SIMULATED"] = platform
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        environment["PYTHONIOENCODING"] = "cp1252" if platform == "win32" else "utf-8"
    return run_python(*arguments, folder=folder, environment=environment)


def codes(report: str) -> list[str]:
    return [one["code"] for one in json.loads(report)["findings"]]


def test_every_module_is_imported(platform: str, tmp_path: Path) -> None:
    done = run_on(platform, tmp_path, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr


PLANTED = {
    "import os; os.fork": "win32",
    "from os import killpg": "win32",
    "import fcntl": "win32",
    "import importlib; importlib.import_module('resource')": "win32",
    "import signal; signal.SIGKILL": "win32",
    "import termios": "win32",
    "import os; os.getuid()": "win32",
    "import os; os.register_at_fork(before=print)": "win32",
    "import select; select.poll()": "win32",
    "import mmap; mmap.MAP_PRIVATE": "win32",
    "import os as system; system.sched_getaffinity(0)": "win32 darwin",
    "import os; os.memfd_create": "win32 darwin",
    "import os; os.listdir('/proc')": "win32 darwin",
    "open('/proc/self/maps')": "win32 darwin",
    "import sys; assert sys.platform == 'linux'": "win32 darwin",
    "import os; os.getpid(); os.O_RDONLY": "",
}
PLANT = """\
import json, sys

failed = []
for code in json.loads(sys.argv[1]):
    for name in ("pytest_gradguard.planted", "gradguard_lint.planted", "joblib.planted"):
        try:
            exec(code, {"__name__": name})
        except (ImportError, AttributeError, OSError, AssertionError):
            failed.append([code, name.partition(".")[0]])
print(json.dumps(failed))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms are simulated on Linux")
def test_planted_posix_calls_fail_in_our_code_alone(platform: str, tmp_path: Path) -> None:
    done = run_on(platform, tmp_path, "-c", PLANT, json.dumps(list(PLANTED)))
    assert json.loads(done.stdout) == [
        [code, name]
        for code, platforms in PLANTED.items()
        if platform in platforms
        for name in ("pytest_gradguard", "gradguard_lint")
    ], done.stderr


def test_a_program_runs_under_the_guard_alone_and_as_a_rank(platform: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for environment in ({}, RANK):
        run = (*GUARD, "run", "--report=r.json", "program.py")
        done = run_on(platform, tmp_path, *run, TMPDIR=str(tmp_path), **environment)
        assert (done.stdout, done.returncode) == ("[4.0, 4.0, 4.0]\n", 0)
        assert done.stderr.startswith("gradguard: no findings\n")
    assert not list(tmp_path.glob("gradguard-ranks*"))


def test_a_process_is_listened_to_where_pipes_can_be_read(platform: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(IN_A_PROCESS)
    done = run_on(platform, tmp_path, *GUARD, "run", "--report=r.json", "program.py")
    found = codes((tmp_path / "r.json").read_text())
    assert ("GG106" in found) == (platform == "darwin"), done.stderr


def test_the_linter_and_its_cache(platform: str, tmp_path: Path) -> None:
    for number in range(30):  # enough for two processes
        (tmp_path / f"program{number}.py").write_bytes(LOSING.replace("\n", "\r\n").encode("utf-8"))
    home = {"HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        lint = (*GUARD, "lint", "--jobs=2", "--output-format=json")
        done = run_on(platform, tmp_path, *lint, **home)
        assert done.stderr == ""
        assert codes(done.stdout).count("GG103") == 30
    folder = tmp_path / "Library" / "Caches" if platform == "darwin" else tmp_path
    assert (folder / "gradguard" / "cache-secret").exists()


def test_a_console_may_lack_characters(platform: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOSING, encoding="utf-8")
    done = run_on(platform, tmp_path, *GUARD, "lint", "--no-cache")
    assert "error[GG103]" in done.stdout
    assert run_on(platform, tmp_path, *GUARD, "explain", "GG103").returncode == 0


@pytest.mark.parametrize(("options", "found"), [((), []), (("--start-method=fork",), ["GG303"])])
def test_a_program_that_leaves_the_start_method_open_spawns(
    platform: str, tmp_path: Path, options: tuple[str, ...], found: list[str]
) -> None:
    lint = (*GUARD, "lint", "--output-format=json", "--no-cache", *options, "program.py")
    (tmp_path / "program.py").write_text(FORKING)
    assert codes(run_on(platform, tmp_path, *lint).stdout) == found
    (tmp_path / "program.py").write_text(FORKING.replace(".Pool", '.get_context("fork").Pool'))
    assert codes(run_on(platform, tmp_path, *lint).stdout) == ["GG303"]


def test_tests_run_under_the_guard(platform: str, tmp_path: Path) -> None:
    (tmp_path / "test_silent.py").write_text(PROGRAM)
    (tmp_path / "test_losing.py").write_text(LOSING, encoding="utf-8")
    plugins = ("-p", "no:platformdirs", "-p", "no:cacheprovider", "-p", "no:asyncio")
    done = run_on(platform, tmp_path, "-m", "pytest", "--gradguard", *plugins)
    assert "gradguard: on" in done.stdout
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_losing.py::test_loss - GG103" in done.stdout


def test_doctor_says_what_is_missing(platform: str, tmp_path: Path) -> None:
    done = run_on(platform, tmp_path, *GUARD, "doctor")
    assert done.returncode == 0, done.stderr
    name = {"darwin": "macOS", "win32": "Windows"}[platform]
    assert f"\nprocesses start by spawn on {name} unless the program chooses\n" in done.stdout
    told = done.stdout.partition(f"\non {name} (docs/platforms.md):\n")[2].partition("\n\n")[0]
    assert TOLD[platform] in told
    assert ("nothing is reported from a `Process`" in told) == (platform == "win32")
    assert TOLD["win32" if platform == "darwin" else "darwin"] not in told
