"""Runs every program on the CPU and on a simulated GPU; prints one JSON line for each."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import autograd
import tensors
import torch
import training

from pytest_gradguard import guard

PROGRAMS = {**training.PROGRAMS, **autograd.PROGRAMS, **tensors.PROGRAMS}


def outcome(name: str, device: str) -> Any:
    """What the program returns, or the error that it raises."""
    torch.manual_seed(5)
    try:
        return PROGRAMS[name](device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, numbers within the tolerance of float32."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6) or (one != one != other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def main() -> None:
    warnings.simplefilter("ignore")
    on_cpu = {name: outcome(name, "cpu") for name in PROGRAMS}
    with guard("record", simulate_gpu=2) as report:
        for name in PROGRAMS:
            on_gpu = outcome(name, "cuda")
            failed = isinstance(on_cpu[name], str)
            verdict = not failed and same(on_cpu[name], on_gpu)
            found = sorted({finding.code for finding in report.findings})
            line = {"program": name, "same": verdict, "found": found}
            if not verdict:
                line |= {"cpu": repr(on_cpu[name]), "gpu": repr(on_gpu)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
