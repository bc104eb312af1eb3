"""The linter knows which calls start CUDA, as it was seen on a real GPU (`cuda_calls`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_calls import KINDS, USES, recorded, statement

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.project.reader import Reader
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
    *("__config__", "cufft_plan_cache", "check_available", "get_device_module()", "nccl"),
    *("autograd.functional", "gradcheck", "func.grad", "foreach=True", "checkpoint"),
    *("lambda storage", "Device(", "memory_pool()", "RawKernel", "Stream.null", "get_plan_cache"),
    *("Fabric", "pipeline", "skorch", "torch_geometric", "BertModel("),
)
"""What makes contexts, or starts the driver, without the linter's knowing."""
IN_THE_PARENT = (
    *("pin_memory=True", "torch.compile", "DataParallel"),
    *("Accelerator", "SentenceTransformer", "TrainingArguments"),
)
"""What uses the GPU that is there, unasked: it is known to start the driver, and no more."""
TAKEN_FOR_IT = ("ReLU()", "Sequential()", "with cupy.cuda.Device(0)", "cupy.empty(0)")
"""What would use the GPU with anything in it: modules without parameters, arrays of no size."""
NONE_SEEN = {("cupy", "initialised"), ("libraries", "driver or context")}
_FURTHER = {
    "torch": ", torch.utils.checkpoint, torch.profiler",
    "cupy": ", cupyx",
    "libraries": "",
}


def found(path: Path, program: str, library: str, call: str) -> set[str]:
    further = _FURTHER[library]
    about = {
        "library": "torch" if library == "libraries" else library,
        "further": further,
        "uses": USES[library],
    }
    path.write_text(program.format(statement=statement(call), **about))
    seen = analyse(str(path), path.read_bytes(), codes(), Options(loops=True), Reader())
    return {item["code"] for item in seen.result.findings}


def agrees(folder: Path, library: str, call: str, kind: str) -> bool:
    """Whether the linter takes the call for what it is, as far as it is to know it."""
    in_worker = "GG201" in found(folder / "worker.py", IN_A_WORKER, library, call)
    before_fork = "GG203" in found(folder / "fork.py", BEFORE_A_FORK, library, call)
    if any(one in call for one in TAKEN_FOR_IT):
        return in_worker
    known = not any(one in call for one in NOT_KNOWN)
    right = before_fork == (kind != "nothing") or not (known or before_fork)
    if kind in ("context", "driver", "nothing") and not any(it in call for it in IN_THE_PARENT):
        right &= in_worker == (kind == "context") or not (known or in_worker)
    return right


@pytest.mark.parametrize("library", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_calls_do(library: str, kind: str, tmp_path: Path) -> None:
    calls = [call for call, what in recorded(library).items() if what == kind]
    assert calls or (library, kind) in NONE_SEEN
    assert [call for call in calls if not agrees(tmp_path, library, call, kind)] == []
