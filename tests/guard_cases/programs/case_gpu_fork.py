"""Forked workers of a process that has not initialised CUDA: the first file of its group."""

import multiprocessing

import pytest
import torch
from joblib import Parallel, delayed

EXPECT = {
    "test_pool_before_cuda": {"GG201"},
    "test_backend_before_cuda": {"GG201"},
    "test_cpu_work_before_cuda": set(),
    "test_availability_asked_before": {"GG201"},
    "test_availability_asked_before_cpu_work": set(),
    "test_pool_older_than_cuda": set(),
}


@pytest.fixture(autouse=True)
def without_cuda():
    assert not torch.cuda.is_initialized()


def squares(k):
    return float(torch.arange(k, device="cuda").square().sum())


def squares_on_cpu(k):
    return float(torch.arange(k).square().sum())


def test_pool_before_cuda():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(squares, [3, 4]) == [5.0, 14.0]  # -> GG201


def test_backend_before_cuda():
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG201


def test_cpu_work_before_cuda():
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]


def test_availability_asked_before():
    assert torch.cuda.is_available()  # which asks the driver: a child cannot any more
    parallel = Parallel(2, backend="multiprocessing")
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        parallel(delayed(squares)(k) for k in (3, 4))  # -> GG201


def test_availability_asked_before_cpu_work():
    assert torch.cuda.is_available()
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]


def test_pool_older_than_cuda():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(squares_on_cpu, [3]) == [5.0]
        assert float(torch.ones(2, device="cuda").sum()) == 2.0
        assert pool.map(squares_on_cpu, [3]) == [5.0]
