"""What joblib pickles, and its errors."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("joblib") and find_spec("numpy")), reason="joblib or NumPy is not installed"
)


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("joblib_pickling")


def test_an_argument_that_refuses_to_be_pickled_reaches_the_caller(facts):
    """An error while an argument is pickled reaches the caller, and the next call works."""
    assert facts["argument_that_refuses"] == {
        "loky": ["PicklingError", [1, 2]],
        "multiprocessing": ["Refusal", [1, 2]],
    }


def test_a_result_that_refuses_to_be_pickled_reaches_the_caller(facts):
    """An error while a result is pickled reaches the caller, and the next call works."""
    assert facts["result_that_refuses"] == {
        "loky": ["Refusal", [1, 2]],
        "multiprocessing": ["MaybeEncodingError", [1, 2]],
    }


def test_a_shared_argument_is_pickled_once_a_batch(facts):
    """An argument that all tasks share is pickled once for each batch of tasks."""
    assert facts["how_often_an_argument_is_pickled"] == {
        "loky 1": 8,
        "loky 4": 2,
        "multiprocessing 1": 8,
        "multiprocessing 4": 2,
        "threading 1": 0,
        "threading 4": 0,
    }


def test_one_job_pickles_nothing(facts):
    """With `n_jobs=1`, nothing is pickled."""
    assert facts["one_job_pickles_nothing"] == [0, True]
