"""The linter knows which calls start CUDA, as it was seen on a real GPU (`cuda_calls`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_calls import USES, recorded, statement

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.project.modules import Reader
from gradguard_lint.rules import codes

IN_A_WORKER = """\
from joblib import Parallel, delayed
import numpy as np
import {library}{further}


saved_cpu = "saved.pt"


def work(k):
    {statement}
    return k


print(Parallel(2)(delayed(work)(k) for k in range(2)))
"""
BEFORE_A_FORK = """\
import multiprocessing

import numpy as np
import {library}{further}

saved_cpu = "saved.pt"


def work(k):
    {uses}


if __name__ == "__main__":
    {statement}
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(2))
"""
NOT_KNOWN = (
    "autocast",
    "DataLoader",
    "DataParallel",
    "GradScaler",
    "Generator",
    "checkpoint",
    "compile",
    "cufft_plan_cache",
    "get_device_module()",
    "profiler",
    '.type("torch.cuda',
    "Device(",
    "memory_pool()",
    "RawKernel",
    "Stream.null",
    "get_plan_cache",
)
"""What makes contexts, or starts the driver, without the linter's knowing."""
TAKEN_FOR_IT = ("ReLU()", "Sequential()", "with cupy.cuda.Device(0)", "cupy.empty(0)")
"""What would use the GPU with anything in it: modules without parameters, arrays of no size."""

CALLS = [(library, call, kind) for library in USES for call, kind in recorded(library).items()]


def found(path: Path, program: str, library: str, call: str) -> set[str]:
    further = ", cupyx" if library == "cupy" else ", torch.utils.checkpoint, torch.profiler"
    about = {"library": library, "further": further, "uses": USES[library]}
    path.write_text(program.format(statement=statement(call), **about))
    raw, *_ = analyse(str(path), path.read_bytes(), codes(), Options(loops=True), Reader())
    return {item["code"] for item in raw}


@pytest.mark.parametrize(("library", "call", "kind"), CALLS)
def test_what_a_call_does(library: str, call: str, kind: str, tmp_path: Path) -> None:
    in_worker = "GG201" in found(tmp_path / "worker.py", IN_A_WORKER, library, call)
    before_fork = "GG203" in found(tmp_path / "fork.py", BEFORE_A_FORK, library, call)
    if any(one in call for one in TAKEN_FOR_IT):
        assert in_worker
        return
    known = not any(one in call for one in NOT_KNOWN)
    if known or before_fork:
        assert before_fork == (kind != "nothing")
    if (known or in_worker) and kind != "initialised":
        assert in_worker == (kind == "context")
