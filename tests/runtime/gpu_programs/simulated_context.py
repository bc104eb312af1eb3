"""What GG201 says under simulation, where the driver's library would answer; prints it as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from joblib import Parallel, delayed

from pytest_gradguard import guard


def start(index: int) -> float:
    return float(torch.ones(index, device="cuda").sum())


del os.environ["CUDA_VISIBLE_DEVICES"]  # a pretended one is not hidden
with guard("record", simulate_gpu=1) as report:
    assert Parallel(2)(delayed(start)(index) for index in (1, 2)) == [1.0, 2.0]
findings = [finding.to_dict() for finding in report.findings]
print(json.dumps([findings, Path(os.environ["NVML_LOG"]).exists()]))
