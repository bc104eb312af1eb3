"""Where a process starts the CUDA driver: the line is named where its forked children fail.

A torch that is built for CUDA is stood for by the function by which it counts GPUs.
"""

from __future__ import annotations

import pytest
from children import run_python

pytest.importorskip("torch")

HEAD = """
import torch
torch._C._cuda_getDeviceCount = count = lambda: 0
from pytest_gradguard import guard
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.runtime.frameworks.torch import engine

x = torch.ones(1, requires_grad=True)
"""


def said(body: str) -> list[str]:
    done = run_python("-c", HEAD + body, limit=120, forked="torch")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_first_of_each_kind_is_kept() -> None:
    program = """
with guard("record"):
    (x * 2).backward()
    torch.cuda.is_available()
    (x * 3).backward()
    torch.cuda.is_available()
    print(*[f"{start.by}:{start.line}" for start in cuda.state.starts])
    print(any(one.__module__.endswith("cuda.driver") for one in engine._listeners.now))
print(cuda.state.starts, torch._C._cuda_getDeviceCount is count)
"""
    first = len(HEAD.splitlines()) + 3
    assert said(program) == [f"backward:{first} question:{first + 1}", "False", "[] True"]


def test_a_build_without_cuda_is_left_alone() -> None:
    program = """
del torch._C._cuda_getDeviceCount
with guard("record"):
    (x * 2).backward()
    print(torch.cuda.is_available(), cuda.state.starts)
"""
    assert said(program) == ["False []"]


def test_simulated_gpus_tell_themselves() -> None:
    program = """
del torch._C._cuda_getDeviceCount
with guard("record", simulate_gpu=1):
    torch.cuda.is_available()
    (x * 2).backward()
    print(*[start.by for start in cuda.state.starts])
    torch.ones(1, device="cuda")
    print(*[start.by for start in cuda.state.starts])
print(cuda.state.starts)
"""
    assert said(program) == ["question backward", "question backward use", "[]"]


@pytest.mark.parametrize(
    ("begins", "runs", "told"),
    [
        ("torch.cuda.is_available()", "on_gpu", "the question for a GPU starts the driver"),
        ("slope(1)", "on_gpu", "the first backward pass starts the driver"),
        ("on_gpu(1)", "on_gpu", "this process initialises CUDA here"),
        ("slope(1)", "slope", "the first backward pass in this process starts autograd's threads"),
    ],
)
def test_the_line_is_the_first_step_of_the_finding(begins: str, runs: str, told: str) -> None:
    program = f"""
import multiprocessing

def on_gpu(k):
    return float(torch.full((1,), k, device="cuda"))

def slope(k):
    y = torch.tensor(float(k), requires_grad=True)
    (y * y).backward()
    return float(y.grad)

with guard("record", simulate_gpu=1) as report:
    {begins}  # begins
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            pool.map({runs}, [1.0])
        except RuntimeError:
            pass
step = report.findings[0].trace[0]
print(step.lane, step.message, step.line)
"""
    lane, _, rest = said("del torch._C._cuda_getDeviceCount\n" + program)[-1].partition(" ")
    lines = (HEAD + "\n" + program).splitlines()
    inner = "torch.full" if begins == "on_gpu(1)" else "backward()" if "slope" in begins else begins
    line = next(number for number, text in enumerate(lines, 1) if inner in text)
    assert lane == "parent"
    assert rest.startswith(told)
    assert rest.endswith(f" {line}")
