"""dask and joblib's dask backend."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("joblib") and find_spec("distributed")),
    reason="torch, joblib or dask.distributed is not installed",
)


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of(
        "dask_doors",
        "backend_by_argument",
        "thread_workers_copy",
        "threads_scheduler",
        "process_workers",
        "submit_of_a_lock",
    )


def test_the_backend_works_by_parallel_backend_alone(facts):
    """joblib's dask backend needs `parallel_backend`: `Parallel(backend="dask")` raises."""
    assert facts["backend_by_argument"] == {
        "before": "ValueError",
        "with a client": "ValueError",
        "by parallel_backend": [1, 2],
        "registered": "TypeError",
    }


@pytest.mark.parametrize("door", ["joblib", "submit"])
def test_thread_workers_get_a_copy_and_the_result_keeps_its_graph(facts, door):
    """A dask worker in a thread gets a copy of a tensor, and its result keeps its graph."""
    assert facts["thread_workers_copy"][door] == [True, None]


def test_the_threads_scheduler_is_right(facts):
    """With dask's threaded scheduler, gradients are right."""
    assert facts["threads_scheduler"] == [True, [3.0, 3.0]]


@pytest.mark.parametrize("door", ["submit", "joblib", "result"])
def test_process_workers_drop_history_silently(facts, door):
    """A dask worker process drops the graph of arguments and results without an error."""
    assert facts["process_workers"][door] == [True, True]


def test_submit_refuses_what_does_not_pickle(facts):
    """`Client.submit` raises a `TypeError` for an argument that cannot be pickled."""
    assert facts["submit_of_a_lock"]["raises"] == "TypeError"


def test_joblibs_dask_backend_hangs_on_what_does_not_serialise(facts_of):
    """joblib's dask backend hangs on a task with an argument that dask cannot serialise."""
    assert facts_of("dask_hangs")["calls_that_end"] == {
        "float32 tensor": True,
        "bfloat16 tensor": False,
        "sparse tensor": False,
        "conjugate tensor": False,
        "lock": False,
        "float32 tensor after those": True,
        "lock as argument": False,
    }
