"""The GPU memory that contexts take, in GG201, without a GPU.

The driver's library is a stand-in: a real shared library with the layouts of NVML's header, loaded
by real workers. So is the GPU that torch initialises (`gpu_programs/cuda_comes_up.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gpu_children import PROGRAMS, said_by

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, ("torch", "joblib"))), reason="no torch or no joblib"
    ),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NVML is asked on Linux only"),
]
MIB = 1 << 20
KNOWN = {
    "own": 512 - 32,
    "both": 512 + 300 - 32,
    "the other is forbidden": 512 - 32,
}
"""What the driver says, and the MiB that the contexts then take: torch has reserved 32."""
UNKNOWN = (
    "no driver",
    "nothing in time",
    "the other is lost",
    "numbers of elsewhere",
    "not available",
    "an instance",
    "others only",
    "too much",
    "another allocator",
    "another package",
)


def library(folder: Path, *options: str) -> dict[str, str]:
    """Compile the stand-in into `folder`; the variables by which children load it."""
    assert COMPILER is not None
    source, target = str(PROGRAMS / "nvml.c"), str(folder / "libnvidia-ml.so.1")
    command = [COMPILER, "-Wall", "-Werror", "-shared", "-fPIC", *options, "-o", target, source]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder), "NVML_LOG": str(folder / "log")}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "pycuda").mkdir()
    (folder / "pycuda" / "__init__.py").touch()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
    variables = {**library(folder), "PYTHONPATH": path}
    return said_by(PROGRAMS / "context_cases.py", *KNOWN, *UNKNOWN, "no CUDA", **variables)


def the_one(case: Any) -> Any:
    (finding,) = case["findings"]
    assert finding["code"] == "GG201"
    assert case["asked besides"] == 0
    return finding


@pytest.mark.parametrize("said", KNOWN)
def test_a_worker_s_contexts(told: Any, said: str) -> None:
    finding = the_one(told[said])
    assert finding["details"]["context_bytes"] == [KNOWN[said] * MIB]
    assert f"takes about {KNOWN[said]} MiB of GPU memory and time" in finding["message"]
    assert told[said]["asked"] == 1


@pytest.mark.parametrize("case", ["two workers", "loky"])
def test_the_contexts_of_all_workers(told: Any, case: str) -> None:
    finding = the_one(told[case])
    assert finding["details"]["workers"] == 2
    assert finding["details"]["context_bytes"] == [480 * MIB] * 2
    assert "in 2 worker processes" in finding["message"]
    assert "takes about 480 MiB of GPU memory (960 MiB in all) and time" in finding["message"]
    assert told[case]["asked"] == 2


@pytest.mark.parametrize("said", UNKNOWN)
def test_what_is_not_known_is_not_said(told: Any, said: str) -> None:
    finding = the_one(told[said])
    assert finding["details"]["failed"] is None
    assert "context_bytes" not in finding["details"]
    assert "which takes GPU memory and time to start" in finding["message"]


def test_where_cuda_does_not_come_up_nobody_asks(told: Any) -> None:
    finding = the_one(told["no CUDA"])
    assert finding["details"]["failed"] == "RuntimeError: no CUDA"
    assert "MiB" not in finding["message"]
    assert told["no CUDA"]["asked"] == 0
    assert told["no GPU work"] == {"findings": [], "asked": 0, "asked besides": 0}


def test_a_driver_that_lists_no_processes_that_way(tmp_path: Path) -> None:
    told = said_by(PROGRAMS / "context_cases.py", **library(tmp_path, "-DOLD"))
    assert "context_bytes" not in the_one(told["two workers"])["details"]
    assert told["two workers"]["asked"] == 2


def test_pretended_gpus_take_no_memory(tmp_path: Path) -> None:
    findings, asked = said_by(PROGRAMS / "simulated_context.py", **library(tmp_path))
    (finding,) = findings
    assert finding["code"] == "GG201"
    assert "MiB" not in finding["message"]
    assert "context_bytes" not in finding["details"]
    assert not asked
