"""Errors at the process boundary."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("joblib")) or sys.platform != "linux",
    reason="torch or joblib is not installed, or signals are others here",
)
CASES = (
    "writes_to_a_read_only_map",
    "doubled_in_shared_maps",
    "doubled_in_copies",
    "killed_in_loky",
    "loaders_in_loky",
    "loaders_in_other_workers",
    "tensors_whose_sender_has_ended",
    "graphs_that_are_refused",
    "a_lock_in_a_module",
)
DAEMONIC = {
    "raises": "AssertionError",
    "says": "daemonic processes are not allowed to have children",
}


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("torch_boundary", *CASES)


HARMLESS = ("numpy", "read", "copied", "cloned")


def test_every_write_through_torch_to_a_read_only_map_kills(facts):
    """A write through torch to an array that joblib memory-mapped kills the worker (SIGSEGV)."""
    ends = dict(facts["writes_to_a_read_only_map"])
    assert {ends.pop(name) for name in HARMLESS} == {0}
    assert set(ends.values()) == {signal.SIGSEGV}
    assert len(ends) == 10


def test_a_killed_worker_of_loky_is_told(facts):
    """joblib raises a `TerminatedWorkerError` if a loky worker was killed."""
    assert facts["killed_in_loky"] == "TerminatedWorkerError"


def test_a_killed_worker_of_a_pool_is_waited_for_forever(hangs):
    """`multiprocessing.Pool` waits endlessly for a worker that was killed."""
    assert hangs("torch_boundary", "killed_in_a_pool", after="killing").hung


def test_tasks_write_into_one_map_that_can_be_written_to(facts):
    """With a writable `mmap_mode`, all tasks write into one array."""
    assert facts["doubled_in_shared_maps"] != [2.0, 2.0, 2.0]


def test_copies_are_each_tasks_own(facts):
    """With `mmap_mode="c"` or `max_nbytes=None`, each task writes into a copy of its own."""
    assert facts["doubled_in_copies"] == [[2.0] * 3] * 2


def test_loaders_in_loky(facts):
    """A `DataLoader` with workers fails in a loky worker, unless its context is `fork`."""
    found = facts["loaders_in_loky"]
    works = [[[0, 1]]]
    assert [found[name] for name in ("no workers", "fork", "context of loky")] == [works] * 3
    assert found["default"]["says"] == "'Process' object has no attribute 'env'"
    assert "exited unexpectedly" in found["spawn"]["says"]
    assert "should specify a valid start method" in found["loky"]["says"]


def test_loaders_in_other_workers(facts):
    """It fails in the daemonic workers of `Pool`, and works in an executor or in threads."""
    found = facts["loaders_in_other_workers"]
    assert found["pool"] == found["joblib's multiprocessing"] == DAEMONIC
    assert (found["executor"], found["threads"]) == ([[0, 1]], [[[0, 1]]])


def test_a_tensor_is_lost_with_its_sender(facts):
    """A tensor shared by `file_descriptor` is lost if its sender ends before it is read."""
    lost, arrived = facts["tensors_whose_sender_has_ended"]
    assert lost["raises"] in ("FileNotFoundError", "ConnectionRefusedError")
    assert "tensor" not in lost["says"]
    assert arrived == [1.0, 1.0]


def test_a_graph_is_refused_without_its_name(facts):
    """`multiprocessing` refuses a tensor with a graph; the error does not name the tensor."""
    for told in facts["graphs_that_are_refused"]:
        assert told["says"].startswith("Cowardly refusing to serialize non-leaf tensor")


def test_what_cannot_be_pickled_is_told_without_its_place(facts):
    """An error for a module that cannot be pickled does not name the attribute at fault."""
    for told in facts["a_lock_in_a_module"]:
        assert "log" not in told["says"]
        assert told["raises"] in ("TypeError", "PicklingError")
