"""GG307, as info: seeds of the parent that do not reach the workers that draw."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_gradguard import Finding, guard
from pytest_gradguard.findings import Severity

joblib = pytest.importorskip("joblib")
numpy = pytest.importorskip("numpy")
pytest.importorskip("numpy.random")
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def unseeded() -> Iterator[None]:
    """Generators that nobody has seeded: their own seeds are random."""
    torch.seed()
    with guard("record"):
        random.seed()
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.MT19937())
    yield
    numpy.random.set_bit_generator(before)
    torch.seed()
    random.seed()


def seed_everything(seed: int) -> None:
    for seeds in (random.seed, numpy.random.seed, torch.manual_seed):
        seeds(seed)


def from_torch(size: int) -> float:
    return float(torch.rand(size).sum())


def from_numpy(size: int) -> float:
    return float(numpy.random.rand(size).sum())


def from_python(folder: str) -> float:
    """Draws once the other worker has the other task."""
    Path(folder, str(os.getpid())).touch()
    end = time.monotonic() + 120
    while len(os.listdir(folder)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return random.random()


def from_dropout(model: Any) -> float:
    return float(model(torch.ones(3)).sum())


def own_generators(seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    return float(torch.rand(1, generator=generator)) + numpy.random.default_rng(seed).random()


def seeds_itself(seed: int) -> float:
    seed_everything(seed)
    return from_torch(1) + from_numpy(1) + random.random()


def computes(size: int) -> float:
    return float(torch.ones(size).sum() + numpy.ones(size).sum())


def nothing(seed: int) -> None:
    pass


def run(
    function: Callable[..., Any], *given: Any, seeds: Callable[[int], Any], **options: Any
) -> list[Finding]:
    """What is found where a program seeds, and then has tasks run."""
    with guard("record") as report:
        seeds(0)
        given = given or (2,)
        joblib.Parallel(**{"n_jobs": 2, "batch_size": 1, **options})(
            joblib.delayed(function)(*given) for _ in range(2)
        )
    return [finding for finding in report.findings if finding.code == "GG307"]


@pytest.mark.parametrize(
    ("function", "seeds", "library"),
    [
        (from_torch, torch.manual_seed, "torch"),
        (from_numpy, numpy.random.seed, "numpy"),
        (from_torch, seed_everything, "torch"),
    ],
)
def test_a_seed_does_not_reach_loky(function: Any, seeds: Any, library: str) -> None:
    (finding,) = run(function, seeds=seeds)
    assert finding.severity is Severity.INFO
    assert finding.details["generators"] == [library]
    assert finding.details["backend"] == "loky"
    assert finding.location.path == __file__
    assert f"`{function.__name__}`" in finding.message


def seed_python(seed: int) -> None:
    random.seed(seed)


def test_a_seed_of_pythons(tmp_path: Path) -> None:
    """Two workers in different states tell that nothing has seeded them."""
    (finding,) = run(from_python, str(tmp_path), seeds=seed_python)
    assert finding.details["generators"] == ["random"]
    assert "random numbers of Python in loky workers" in finding.message


def test_no_seed_of_pythons(tmp_path: Path) -> None:
    assert run(from_python, str(tmp_path), seeds=nothing) == []


def test_what_a_model_draws() -> None:
    (finding,) = run(from_dropout, torch.nn.Dropout(), seeds=torch.manual_seed)
    assert finding.details["generators"] == ["torch"]


@pytest.mark.parametrize(
    ("function", "seeds", "options"),
    [
        pytest.param(own_generators, seed_everything, {}, id="own generators"),
        pytest.param(seeds_itself, seed_everything, {}, id="tasks that seed"),
        pytest.param(computes, seed_everything, {}, id="nobody draws"),
        pytest.param(numpy.random.rand, numpy.random.seed, {}, id="a method of a shipped copy"),
        pytest.param(from_torch, seed_everything, {"backend": "threading"}, id="threads"),
        pytest.param(from_numpy, seed_everything, {"backend": "multiprocessing"}, id="forked"),
        pytest.param(from_torch, seed_everything, {"n_jobs": 1}, id="one job"),
        pytest.param(from_torch, nothing, {}, id="no seed"),
        pytest.param(from_numpy, nothing, {}, id="no seed of NumPy's"),
        pytest.param(from_torch, numpy.random.seed, {}, id="a seed for NumPy alone"),
        pytest.param(from_numpy, torch.manual_seed, {}, id="a seed for torch alone"),
    ],
)
def test_nothing_to_report(function: Any, seeds: Any, options: dict[str, Any]) -> None:
    assert run(function, seeds=seeds, **options) == []


@pytest.mark.parametrize(
    ("method", "initializer", "found"),
    [("spawn", None, ["GG307"]), ("forkserver", seed_everything, [])],
)
def test_workers_that_an_initializer_seeds(method: str, initializer: Any, found: Any) -> None:
    context = multiprocessing.get_context(method)
    given = (1,) if initializer else ()
    with (
        guard("record") as report,
        ProcessPoolExecutor(1, context, initializer, given) as executor,
    ):
        seed_everything(0)
        assert executor.submit(from_torch, 2).result() < 2
        assert executor.submit(from_numpy, 2).result() < 2
    assert sorted({finding.code for finding in report.findings}) == found
