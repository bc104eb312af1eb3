"""`DataLoader` workers."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("numpy")) or sys.platform == "win32",
    reason="torch or NumPy is not installed, or nothing is forked here",
)


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("torch_loader")


@pytest.mark.parametrize("kind", ["numpy", "torch", "python"])
def test_a_generator_in_the_dataset_repeats(facts, kind):
    """A generator object in the dataset gives the same numbers in each worker and in each epoch."""
    told = facts[f"{kind}_generator_in_the_dataset"]
    assert told == {"in the other worker": True, "in the next epoch": True}


@pytest.mark.parametrize("case", ["global_generators", "generator_from_the_seed_of_the_worker"])
def test_torch_seeds_global_generators_only(facts, case):
    """torch seeds the global generators of each worker, so these do not repeat."""
    assert facts[case] == {"in the other worker": False, "in the next epoch": False}


def test_a_leaf_arrives_as_a_leaf(facts):
    """A sample that is a leaf arrives as a leaf."""
    assert facts["leaf_samples"] == [[True, True], [True, True]]


def test_collating_what_requires_grad_is_refused(facts):
    """Collating samples that require grad raises."""
    told = facts["stacked_samples_that_require_grad"]
    assert "don't support automatic differentiation" in told["says"]


def test_workers_compute_in_one_thread(facts):
    """A `DataLoader` worker computes in one thread."""
    assert facts["threads_of_a_worker"] == [1, 1]


def test_a_sample_with_history_never_arrives(hangs):
    """A sample with a graph never arrives: the loop over the loader hangs."""
    assert hangs("torch_loader_history", "samples_with_history", after="loading").hung
