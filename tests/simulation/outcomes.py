"""What every program and situation gives on the CPU, on simulated GPUs, and on real ones.

``python outcomes.py`` prints one JSON line for each; real GPUs are used where there are any.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import compare
import situations
import torch

from pytest_gradguard import guard

REAL = torch.cuda.is_available()


def found_and_given(run: Any, devices: int | None) -> dict[str, Any]:
    """The codes of the findings of `run`, and what it returns."""
    with guard("record", simulate_gpu=devices) as report:
        given = run()
        codes = sorted({f"{f.code} {f.severity.label}" for f in report.findings})
    return {"found": [code for code in codes if not code.endswith("info")], "given": given}


def main() -> None:
    warnings.simplefilter("ignore")
    for name in compare.PROGRAMS:
        on_cpu = compare.outcome(name, "cpu")

        def run(name: str = name, on_cpu: Any = on_cpu) -> str:
            same = compare.same(on_cpu, compare.outcome(name, "cuda"))
            return "as on the CPU" if same else "not as on the CPU"

        tell(name, run)
    for name, run in situations.SITUATIONS.items():
        tell(name, run)


def tell(name: str, run: Any) -> None:
    """Print what `run` gives, on simulated GPUs and, where there are any, on real ones."""
    line = {"name": name, "simulated": None, "real": None}
    if REAL:
        line["real"] = found_and_given(run, None)
    else:
        line["simulated"] = found_and_given(run, 2)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
