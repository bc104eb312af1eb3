"""GG304, as info: forked workers that drew the same numbers from the parent's global generators."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from pytest_gradguard import Finding, guard
from pytest_gradguard.findings import Severity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")
joblib = pytest.importorskip("joblib")
numpy = pytest.importorskip("numpy")
pytest.importorskip("numpy.random")  # loaded lazily; a worker that loads it has a state of its own
torch = pytest.importorskip("torch")

FORK = multiprocessing.get_context("fork")


BOTH = FORK.Barrier(2)
"""Forked workers inherit it: each task waits until the other worker has the other one."""


def draw(seed: int) -> float:
    return float(torch.rand(1))


def from_torch(seed: int) -> float:
    BOTH.wait(120)
    return draw(seed)


def from_numpy(seed: int) -> float:
    BOTH.wait(120)
    return float(numpy.random.rand())


def seeded(seed: int) -> float:
    torch.manual_seed(seed)
    return draw(seed)


def own_generator(seed: int) -> float:
    return float(numpy.random.default_rng(seed).random())


def by_joblib(function: Callable[[int], float], backend: str = "multiprocessing") -> list[float]:
    tasks = (joblib.delayed(function)(seed) for seed in (1, 2))
    results: list[float] = joblib.Parallel(2, backend=backend)(tasks)
    return results


def by_pool(function: Callable[[int], float]) -> list[float]:
    with FORK.Pool(2) as pool:
        return pool.map(function, (1, 2), chunksize=1)


def by_executor(function: Callable[[int], float]) -> list[float]:
    with ProcessPoolExecutor(2, mp_context=FORK) as executor:
        futures = [executor.submit(function, seed) for seed in (1, 2)]
        return [future.result() for future in futures]


def found_by(way: Callable[..., Any], *given: Any) -> tuple[list[float], list[Finding]]:
    with guard("record") as report:
        results = way(*given)
    return results, report.findings


@pytest.mark.parametrize("function", [from_torch, from_numpy])
@pytest.mark.parametrize("way", [by_joblib, by_pool, by_executor])
def test_same_numbers(way: Any, function: Any) -> None:
    results, findings = found_by(way, function)
    assert results[0] == results[1]
    assert [finding.code for finding in findings] == ["GG304"]
    assert findings[0].severity is Severity.INFO
    assert findings[0].details["framework"] == function.__name__.removeprefix("from_")
    assert f"`{function.__name__}`" in findings[0].message
    assert findings[0].location.path == __file__


@pytest.mark.parametrize("function", [seeded, own_generator])
@pytest.mark.parametrize("way", [by_joblib, by_pool, by_executor])
def test_own_numbers(way: Any, function: Any) -> None:
    results, findings = found_by(way, function)
    assert results[0] != results[1]
    assert findings == []


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_not_forked(backend: str) -> None:
    _, findings = found_by(by_joblib, draw, backend)
    # Another test may have seeded in this process: GG307 then says that it does not reach them.
    assert [one for one in findings if one.code != "GG307"] == []
