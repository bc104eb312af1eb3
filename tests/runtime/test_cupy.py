"""CuPy under the guard: the real package, where there is no GPU.

What fails for want of one is real. What would succeed on one is shown over memory of the host
(`gpu_programs/cupy_on_host.py`): CuPy's own arrays, its own way of asking for memory, real workers;
no CUDA.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gpu_children import PROGRAMS, codes, said_by

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("cupy", "joblib", "numpy"))), reason="no CuPy or joblib"
)
CASES = PROGRAMS / "cupy_cases.py"
BACKENDS = ("loky", "multiprocessing")


@pytest.fixture(scope="module")
def without() -> Any:
    """Findings where there is no GPU."""
    return said_by(CASES, *BACKENDS)


@pytest.fixture(scope="module")
def on_host() -> Any:
    """Findings over memory of the host."""
    return said_by(PROGRAMS / "cupy_host_cases.py")


def line_of(mark: str) -> int:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.endswith(f"# -> {mark}"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case", ["zeros", "convert", "numbers", "stream", "another_error", "caught"]
)
def test_what_needs_a_gpu_is_an_attempt(without: Any, case: str, backend: str) -> None:
    (finding,) = without[f"{case} {backend}"]["findings"]
    assert finding["code"] == "GG201"
    assert finding["details"]["framework"] == "cupy"
    assert finding["details"]["failed"].startswith("CUDARuntimeError: cudaError")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["zeros", "convert"])
def test_the_line_that_needs_a_gpu(without: Any, case: str, backend: str) -> None:
    (finding,) = without[f"{case} {backend}"]["findings"]
    step = finding["trace"][0]
    assert (Path(step["path"]).name, step["line"]) == (CASES.name, line_of(case))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["asked", "counted", "own_error"])
def test_who_asks_whether_there_is_a_gpu_needs_none(without: Any, case: str, backend: str) -> None:
    assert without[f"{case} {backend}"]["findings"] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_error_of_a_worker_s_worker_is_said_once(without: Any, backend: str) -> None:
    (finding,) = without[f"nested {backend}"]["findings"]
    # Workers of a pool have no workers of their own: joblib runs the inner tasks one by one there.
    function = "zeros" if backend == "loky" else "nested"
    assert (finding["code"], finding["details"]["function"]) == ("GG201", function)


def test_errors_arrive_as_without_the_guard(without: Any) -> None:
    assert [name for name, case in without.items() if not case["same"]] == []


def test_memory_taken_in_workers(on_host: Any) -> None:
    for case in ("workers take", "forked workers take"):
        (finding,) = on_host["told"][case]
        assert finding["code"] == "GG201"
        assert (finding["details"]["framework"], finding["details"]["failed"]) == ("cupy", None)
        assert finding["trace"][0]["path"].endswith("cupy_on_host.py")
    assert on_host["told"]["workers take nothing"] == []


def test_arrays_that_cross(on_host: Any) -> None:
    about = {
        "framework": "cupy",
        "type": "ndarray",
        "shape": [2],
        "dtype": "float64",
        "device": "cuda:0",
        "object": "args[0]",
        "direction": "argument",
    }
    (finding,) = on_host["told"]["argument"]
    assert (finding["code"], finding["count"]) == ("GG202", 2)
    assert {**finding["details"], **about} == finding["details"]
    (finding,) = on_host["told"]["captured"]
    assert (finding["code"], finding["details"]["direction"]) == ("GG202", "capture")
    assert on_host["told"]["threads"] == []


def test_arrays_that_come_back(on_host: Any) -> None:
    findings = on_host["told"]["workers give"]
    assert codes(findings) == {"GG201", "GG202"}
    (crossed,) = (finding for finding in findings if finding["code"] == "GG202")
    assert crossed["details"]["object"] == "result['made'][0]"


def test_what_an_array_needs_to_arrive_is_not_the_task_s(on_host: Any) -> None:
    assert codes(on_host["told"]["arrived before"]) == {"GG202"}


def test_forks(on_host: Any) -> None:
    told = on_host["told"]
    assert told["fork before"] == []
    assert told["fork and take"] == []  # those workers were there before
    (finding,) = told["fork after"]
    assert (finding["code"], finding["details"]["framework"]) == ("GG203", "cupy")
    assert told["numpy instead"] == []


def test_visible_devices(on_host: Any) -> None:
    assert codes(on_host["told"]["visible devices"]) == {"GG201", "GG204"}


def test_the_program_s_allocator_stays_its_own(on_host: Any) -> None:
    assert on_host["told"]["own allocator"] == []
    assert set(on_host["names"].values()) == {True}
