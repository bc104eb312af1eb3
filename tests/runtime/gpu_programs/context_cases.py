"""What GG201 says of the memory that contexts take; prints it as JSON.

The driver's library is a stand-in, and so is the GPU that torch initialises.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import cuda_comes_up as tasks
from joblib import Parallel, delayed

from pytest_gradguard import guard

LOG = Path(os.environ["NVML_LOG"])


def case(
    said: str, workers: int = 1, backend: str = "multiprocessing", function: Any = None
) -> Any:
    """The findings, who of the workers asked the driver, and who did besides."""
    LOG.write_text("")
    with tempfile.TemporaryDirectory() as room, guard("record") as report:
        parallel = Parallel(workers + 1, backend=backend, batch_size=1)
        ran = parallel(
            delayed(function or tasks.start)(said, room, workers) for _ in range(workers)
        )
    asked = [int(line) for line in LOG.read_text().split()]
    return {
        "findings": [finding.to_dict() for finding in report.findings],
        "asked": len(asked),
        "asked besides": len(set(asked) - set(ran)),
    }


told: dict[str, Any] = {said: case(said) for said in sys.argv[1:]}
told["two workers"] = case("own", workers=2)
told["loky"] = case("own", workers=2, backend="loky")
told["no GPU work"] = case("own", function=tasks.nothing)
print(json.dumps(told))
