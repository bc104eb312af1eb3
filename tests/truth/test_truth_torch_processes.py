"""torch with the standard process pools, forks and CUDA."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("joblib") and find_spec("numpy")),
    reason="torch, joblib or NumPy is not installed",
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="native threads at a fork: Linux")

REFUSAL = "Cowardly refusing to serialize non-leaf tensor"


@pytest.mark.parametrize(
    "case",
    [
        "executor_argument",
        "executor_result",
        "pool_argument",
        "pool_result",
        "torch_pool_argument",
    ],
)
def test_the_standard_pools_refuse_history(facts_of, case):
    """`multiprocessing` and `concurrent.futures` refuse a tensor with a graph."""
    assert REFUSAL in facts_of("torch_doors")[case]["says"]


def test_the_standard_pools_take_a_leaf(facts_of):
    """They accept a leaf that requires grad."""
    assert facts_of("torch_doors")["pool_leaf_argument"] is True


def test_lokys_own_executor_does_not_refuse(facts_of):
    """loky's own executor drops the graph without an error."""
    assert facts_of("torch_doors")["loky_executor_argument"] is True


def test_without_numpy_the_multiprocessing_backend_refuses_as_well(facts_of):
    """Without NumPy, joblib's multiprocessing backend refuses a tensor with a graph, too."""
    facts = facts_of("torch_without_numpy")
    assert REFUSAL in facts["history_over_multiprocessing"]["says"]
    assert facts["leaf_over_multiprocessing"] is True
    assert facts["history_over_loky"] is True


@pytest.fixture(scope="module")
def forks_that_work(facts_of):
    return facts_of(
        "torch_fork",
        "small_in_parent",
        "small_autograd_in_parent_and_workers",
        "one_thread_in_workers",
        "numpy_in_workers",
        "loky_workers",
        "spawned_workers",
        "forkserver_workers",
        "one_thread_from_a_fork_hook",  # last: the hook stays
    )


@linux
@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("small_in_parent", 2000.0**2),
        ("small_autograd_in_parent_and_workers", [2.0, 2.0]),
        ("one_thread_in_workers", 2000.0**2),
        ("numpy_in_workers", 500.0**2),
        ("loky_workers", 2000.0**2),
        ("spawned_workers", 2000.0**2),
        ("forkserver_workers", 2000.0**2),
        ("one_thread_from_a_fork_hook", 2000.0**2),
    ],
)
def test_workers_that_compute(forks_that_work, case, result):
    """Forked workers can compute if the parent ran small operations, or if they use one thread."""
    assert forks_that_work[case] == [result, result]


@linux
def test_large_operations_before_and_after_a_fork_hang(hangs):
    """Large operations in the parent, and then in a forked worker, hang."""
    hang = hangs("torch_fork", "large_in_parent_and_workers", after="forking")
    assert hang.hung
    assert hang.workers_outlive_the_parent


@pytest.fixture(scope="module")
def cuda(facts_of):
    facts = facts_of("torch_cuda")
    if facts["built_with_cuda"]:
        pytest.skip("this torch is built with CUDA")
    return facts


def test_calls_that_try_to_initialise_cuda(cuda):
    """`.cuda()`, `.to("cuda")` and their like try to initialise CUDA."""
    found = cuda["calls_that_try"]
    assert len(found) == 8
    assert set(map(tuple, found.values())) == {(True, True)}


def test_calls_that_do_not_initialise_cuda(cuda):
    """Queries such as `torch.cuda.is_available()` do not initialise CUDA."""
    found = cuda["calls_that_do_not"]
    assert len(found) == 6
    assert set(map(tuple, found.values())) == {(False, False)}


def test_a_fake_tensor_is_on_cuda_and_does_not_pickle(cuda):
    """A `FakeTensor` can be on `cuda:0` without a GPU, and cannot be pickled."""
    assert cuda["fake_tensor"] == [True, "cuda:0", True]


def test_a_function_mode_can_move_cuda_to_the_cpu(cuda):
    """A `TorchFunctionMode` can replace CUDA with the CPU in every call."""
    assert cuda["devices_rewritten"] == ["cpu"]
