"""What the tests on a real GPU run in workers: importable there by name."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import torch


def nothing(index: int) -> int:
    return index


def on_gpu(index: int) -> float:
    return float(torch.ones(4, device="cuda").sum()) + index


def on_gpu_if_possible(index: int) -> float:
    try:
        return on_gpu(index)
    except RuntimeError:
        return 4.0 + index


def trained(index: int) -> float:
    weights = torch.ones(3, requires_grad=True)
    (weights * index).sum().backward()
    assert weights.grad is not None
    return float(weights.grad.sum())


def in_a_process(function: Any) -> int | None:
    """Run `function` in a process that is forked for it; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=(1,))
    process.start()
    process.join()
    return process.exitcode


def start(index: int) -> dict[str, float]:
    """The first use of the GPU in this worker: how long it takes, and what it takes of the GPU."""
    began = time.perf_counter()
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    time.sleep(2)  # the other workers hold their contexts as well, while they are measured
    return {
        "process": os.getpid(),
        "seconds": seconds,
        "reserved_bytes": torch.cuda.memory_reserved(),
        "free_bytes": free,
        "total_bytes": total,
    }


def total(tensor: Any) -> float:
    return float(tensor.sum())


def total_of(tensor: Any, index: int) -> float:
    return total(tensor) + index


def backward(model: Any) -> float:
    loss = model(torch.ones(4, 3, device="cuda")).sum()
    loss.backward()
    return float(loss)


def forward(model: Any) -> float:
    return float(model(torch.rand(4, 3, device="cuda")).sum())


def make(index: int) -> Any:
    return torch.ones(3, device="cuda") * index


def choose(index: int) -> float:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    return on_gpu(index)


def cupy_on_gpu(index: int) -> float:
    import cupy

    return float(cupy.ones(4).sum()) + index


def cupy_make(index: int) -> Any:
    import cupy

    return cupy.ones(3) * index


def cupy_total(array: Any) -> float:
    return float(array.sum())


def tensorflow_on_gpu(index: int) -> float:
    import tensorflow as tf

    return float(tf.reduce_sum(tf.ones(4))) + index
