"""`gradguard compare`: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import Done, run_python

pytest.importorskip("torch")
pytest.importorskip("joblib")

PROGRAMS = Path(__file__).parent / "programs"
PRINTING = 'print("written once")\nopen("runs", "a").write("run\\n")\n'


def compare(folder: Path, *arguments: str) -> Done:
    command = ("-m", "pytest_gradguard", "compare", *arguments)
    return run_python(*command, folder=folder, limit=400, forked="torch")


def written(folder: Path, name: str, source: str) -> str:
    (folder / name).write_text(source, encoding="utf-8")
    return name


def test_a_difference_is_shown_with_its_cause(tmp_path: Path) -> None:
    source = (PROGRAMS / "forward_in_loky.py").read_text(encoding="utf-8") + PRINTING
    program = written(tmp_path, "train.py", source)
    done = compare(tmp_path, "--report", "found.json", "--html", "found.html", program)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == "written once\n"
    line = 1 + source.splitlines().index(
        "    (sum(losses) + 0.01 * net.weight.pow(2).sum()).backward()"
    )
    assert (
        f"the runs differ after the backward pass (train.py:{line}): `net.weight.grad`\n"
        in done.stderr
    )
    assert "explained by GG103" in done.stderr
    assert "error[GG103]" in done.stderr
    report = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    found = report["compare"]
    assert (found["outcome"], found["tasks"]) == ("differ", 4)
    assert found["difference"]["tensor"] == "net.weight.grad"
    assert found["difference"]["values"]["workers"] != found["difference"]["values"]["inline"]
    assert found["explained_by"][0]["code"] == "GG103"
    assert {"schema", "tool", "findings"} <= report.keys()
    assert "the runs differ after the backward pass" in (tmp_path / "found.html").read_text()
    assert (tmp_path / "runs").read_text() == "run\n" * 3


def test_a_program_that_loses_nothing_is_the_same(tmp_path: Path) -> None:
    source = (PROGRAMS / "gradients_returned.py").read_text(encoding="utf-8") + PRINTING
    done = compare(tmp_path, "--rtol", "0", "--atol", "0", written(tmp_path, "train.py", source))
    assert (done.returncode, done.stdout) == (0, "written once\n"), done.stderr
    assert "the same with workers and in one process (4 tasks compared)" in done.stderr
    assert (tmp_path / "runs").read_text() == "run\n" * 2


SPAWNED = """
import torch
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process

factor = 1.0


def gradient(layer):
    scale = FACTOR
    (layer(torch.ones(1, 2)) * scale).sum().backward()
    return layer.weight.grad


if __name__ == "__main__":
    factor = 2.0
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        layer.weight.grad = executor.submit(gradient, layer).result()
    optimizer.step()
"""


def test_bits_that_differ_are_said(tmp_path: Path) -> None:
    source = SPAWNED.replace("FACTOR", "1.0 + 1e-6 * (parent_process() is None)")
    done = compare(tmp_path, written(tmp_path, "train.py", source))
    assert done.returncode == 0, done.stderr
    assert "the same with workers and in one process (1 task compared)" in done.stderr
    assert (
        "equal within rounding, but not to the bit: first in the gradients of an optimizer's step, "
        "step 1 (train.py:21), layer.weight.grad"
    ) in done.stderr


def test_what_is_only_worth_knowing_explains_no_difference(tmp_path: Path) -> None:
    source = SPAWNED.replace("FACTOR", "factor")
    report = ("--report", "found.json")
    done = compare(tmp_path, *report, written(tmp_path, "train.py", source))
    assert done.returncode == 1, done.stderr
    assert "cause unknown: no finding of the guard explains the difference" in done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [one["code"] for one in found["findings"]] == ["GG107"]
    assert found["compare"]["explained_by"] == []


BILLIARD = """
import billiard

if __name__ == "__main__":
    with billiard.Pool(1) as pool:
        print(pool.map(abs, [-1]))
"""


def test_work_of_a_library_that_cannot_be_done_inline_is_named(tmp_path: Path) -> None:
    pytest.importorskip("billiard")
    done = compare(tmp_path, written(tmp_path, "train.py", BILLIARD))
    assert (done.returncode, done.stdout) == (2, "[1]\n"), done.stderr
    assert "left in its workers: a task for billiard workers" in done.stderr


RANKS = """
import os
import subprocess
import sys

if "RANK" not in os.environ:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    subprocess.run([sys.executable, __file__], env=environment, check=True)
"""


def test_programs_that_the_program_starts_are_named(tmp_path: Path) -> None:
    done = compare(tmp_path, written(tmp_path, "train.py", RANKS))
    assert done.returncode == 2, done.stderr
    assert "left in its workers: a program that it starts at train.py:8" in done.stderr


SERVER = """
from multiprocessing import Process, Queue

import torch


def serve(tasks, results):
    for x in iter(tasks.get, None):
        results.put(float(x) * 2)


tasks, results = Queue(), Queue()
process = Process(target=serve, args=(tasks, results))
process.start()
tasks.put(1.0)
print(results.get())
tasks.put(None)
process.join()
"""
CHANCE = """
import os
import torch
from joblib import Parallel, delayed

net = torch.nn.Linear(1, 1)
x = torch.tensor([[float(x)] for x in os.urandom(2)])
outputs = Parallel(n_jobs=2)(delayed(torch.mul)(row, 2.0) for row in x)
net(torch.stack(outputs)).sum().backward()
"""
DASK_ACTOR = """
from distributed import Client

class Counter:
    pass

with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    client.submit(Counter, actor=True).result()
"""
ENDS = {
    "nothing": ("print('alone')", 0, "nothing was handed out; nothing to compare"),
    "failed": ("raise SystemExit(3)", 2, "the program failed (exit status 3)"),
    "server": (SERVER, 2, "the process started at program.py:14 waits for others at program.py:8"),
    "dask": (DASK_ACTOR, 2, "calling process: a task is an actor of dask.distributed"),
    "chance": (CHANCE, 2, "two runs of the program as it is differ, too"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_cannot_be_compared_is_said(name: str, tmp_path: Path) -> None:
    if name == "dask":
        pytest.importorskip("distributed")
    source, status, said = ENDS[name]
    done = compare(tmp_path, written(tmp_path, "program.py", source))
    assert done.returncode == status, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.py",), "cannot find 'missing.py': there is no such file"),
        (("-m", "no_such_module"), "cannot find the module 'no_such_module'"),
        (("--rtol", "small", "program.py"), "--rtol 'small' is not a number of 0 or more"),
        (("--report", "no/such/folder.json", "program.py"), "no/such/folder.json"),
        ((), "the following arguments are required: PROGRAM"),
    ],
)
def test_a_bad_command_line_is_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    written(tmp_path, "program.py", "")
    done = compare(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradguard compare: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


TESTS = """
import torch
from joblib import Parallel, delayed


def loss(net, x):
    return net(x).mean()


def test_trained():
    net = torch.nn.Linear(2, 1)
    losses = Parallel(n_jobs=2)(delayed(loss)(net, x) for x in torch.rand(2, 3, 2))
    (sum(losses) + net.bias.sum()).backward()


def test_evaluated():
    net = torch.nn.Linear(2, 1).requires_grad_(False)
    inputs = torch.rand(2, 3, 2, requires_grad=True)
    scale = torch.ones(1, requires_grad=True)
    losses = Parallel(n_jobs=2)(delayed(loss)(net, x.detach()) for x in inputs)
    (scale * sum(losses)).backward()


def test_alone():
    torch.ones(1, requires_grad=True).backward()
"""


def test_tests_are_compared(tmp_path: Path) -> None:
    written(tmp_path, "test_training.py", TESTS)
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--gradguard-compare", "test_training.py")
    done = run_python(*command, folder=tmp_path, limit=300, forked="torch")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert "explained by GG103" in done.stdout
    assert "tests with workers and in one process: 1 the same, 1 differ" in done.stdout
