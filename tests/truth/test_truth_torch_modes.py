"""torch's modes, random numbers, caches and globals in workers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("joblib") and find_spec("numpy")),
    reason="torch, joblib or NumPy is not installed",
)

BACKENDS = ("loky", "multiprocessing", "threading")


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("torch_modes")


@pytest.mark.parametrize("mode", ["no_grad", "set_grad_enabled"])
def test_gradients_are_off_in_forked_workers_alone(facts, mode):
    """`no_grad` and `set_grad_enabled` of the caller hold in forked workers only."""
    assert facts[mode] == {"loky": True, "multiprocessing": False, "threading": True}


@pytest.mark.parametrize("mode", ["inference_mode", "autocast"])
def test_a_mode_reaches_forked_workers_alone(facts, mode):
    """`inference_mode` and `autocast` of the caller hold in forked workers only."""
    assert facts[mode] == {"loky": False, "multiprocessing": True, "threading": False}


@pytest.mark.parametrize(
    ("transform", "right", "in_threads"),
    [
        ("grad", [5.0, 5.0], [0.0, 0.0]),
        ("vjp", [5.0, 5.0], [0.0, 0.0]),
        ("jvp", 10.0, 0.0),
    ],
)
def test_a_function_transform_belongs_to_its_thread(facts, transform, right, in_threads):
    """`torch.func.grad`, `vjp` and `jvp` of the caller silently miss what threads compute."""
    found = facts["derivatives_of_the_caller"][transform]
    assert found["one job"] == right
    assert found["threading"] == in_threads
    assert found["loky"]["raises"] == "PicklingError"
    assert found["multiprocessing"]["says"].startswith("Cannot access storage")


def test_vmap_of_the_caller_fails_in_every_worker(facts):
    """Tensors of the caller's `vmap` raise in every worker."""
    found = facts["derivatives_of_the_caller"]["vmap"]
    assert found["one job"] == [15.0, 15.0]
    assert "escaped from inside a function being vmapped" in found["threading"]["says"]
    assert found["loky"]["raises"] == "PicklingError"
    assert found["multiprocessing"]["says"].startswith("Cannot access storage")


def test_a_tangent_reaches_threads_and_no_processes(facts):
    """A forward-mode tangent reaches threads, and is dropped on the way to a process."""
    found = facts["derivatives_of_the_caller"]["dual level"]
    right = {"one job": 10.0, "threading": 10.0}
    assert found == right | {"loky": None, "multiprocessing": None}


def test_anomaly_detection_belongs_to_the_process(facts):
    """`detect_anomaly` holds in threads and forked workers, not in loky workers."""
    assert facts["detect_anomaly"] == {"loky": False, "multiprocessing": True, "threading": True}


def test_settings_of_a_process_reach_threads_and_forked_workers(facts):
    """Defaults such as the dtype hold in threads and forked workers, not in loky workers."""
    found = facts["settings_of_the_caller"]
    caller = found.pop("caller")
    assert caller == {
        "default dtype": "torch.float64",
        "deterministic algorithms": True,
        "matmul precision": "high",
        "cuDNN benchmark": True,
        "default device": "meta",
    }
    torchs_own = {
        "default dtype": "torch.float32",
        "deterministic algorithms": False,
        "matmul precision": "highest",
        "cuDNN benchmark": False,
        "default device": "cpu",
    }
    threading = {**caller, "default device": "cpu"}  # that is a mode of the calling thread
    assert found == {"loky": torchs_own, "multiprocessing": caller, "threading": threading}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_callers_mode_does_not_reach_its_own_generator(facts, backend):
    """Under `no_grad`, only the first tasks of a generator are created without grad."""
    made = facts["caller_generator_under_no_grad"][backend]
    assert len(made) == 12
    assert not any(made[:4])
    assert any(made[4:])


def test_only_loky_divides_the_native_threads(facts):
    """Only loky divides the native threads among its workers."""
    found = facts["threads_per_worker"]
    assert found["found"]["loky"] == found["loky's share"]
    assert found["found"]["multiprocessing"] == found["found"]["threading"] == 2


@pytest.mark.parametrize("library", ["torch", "numpy", "python"])
def test_loky_workers_draw_different_numbers_whatever_the_parents_seed(facts, library):
    """Loky workers draw different numbers, whatever seed the parent sets."""
    calls = facts["random_streams_loky"][library]
    numbers = [number for call in calls for stream in call for number in stream]
    assert len(numbers) == 4 * 6
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_forked_workers_draw_the_same_numbers_in_every_call(facts, library):
    """Forked workers draw the same numbers from torch and NumPy, in every call."""
    streams = [stream for call in facts["random_streams_fork"][library] for stream in call]
    assert len(streams) == 4
    for stream in streams:
        shorter = min(len(stream), len(streams[0]))
        assert stream[:shorter] == streams[0][:shorter]


def test_pythons_own_generator_is_seeded_anew_in_a_forked_worker(facts):
    """A forked worker reseeds Python's `random`."""
    streams = [stream for call in facts["random_streams_fork"]["python"] for stream in call]
    assert len({stream[0] for stream in streams}) == 4


def test_threads_share_one_stream(facts):
    """Threads share one stream of random numbers."""
    assert facts["random_stream_of_threads"] is True


def test_threads_that_seed_draw_from_one_anothers_stream(facts):
    """Threads that set a seed or use `fork_rng` change the generator that all threads share."""
    shared = dict.fromkeys(("torch", "numpy", "python", "fork_rng of torch"), False)
    assert facts["threads_that_seed"] == {**shared, "own generator": True}


def test_a_task_that_names_the_flags_of_cudnn_cannot_be_pickled(facts):
    """loky cannot pickle a task of `__main__` that uses `torch.backends.cudnn.benchmark`."""
    assert facts["task_that_names_a_module_of_torchs"]["raises"] == "PicklingError"


@pytest.mark.parametrize("library", ["torch", "numpy", "python"])
def test_one_generator_object_gives_every_process_task_the_same_number(facts, library):
    """A generator object that is sent to process workers gives every task the same number."""
    found = facts["one_generator_for_all_tasks"]
    for backend in ("loky", "multiprocessing"):
        assert len(set(found[backend][library])) == 1
    assert len(set(found["threading"][library])) == 4


def test_the_tasks_of_one_batch_share_the_copy(facts):
    """Tasks in one batch share a copy, so the numbers repeat from batch to batch only."""
    drawn = facts["one_generator_in_one_batch"]
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_a_memory_cache_gives_the_graph_once(facts):
    """`joblib.Memory` returns a tensor with its graph once, and without it from the cache."""
    assert facts["memory_cache"] == [[2.0], None]


def test_a_fresh_interpreter_imports_the_module_afresh(facts):
    """loky, spawn and forkserver workers import modules again: changed globals are reset."""
    afresh = {"loky": 1.0, "spawn": 1.0, "forkserver": 1.0}
    inherited = {"multiprocessing": 20.0, "fork": 20.0, "threading": 20.0}
    assert facts["global_of_an_imported_module"] == afresh | inherited


def test_two_threads_can_both_step_with_the_sum_of_their_gradients(facts):
    """Two threads that train one model can each step with the sum of both gradients."""
    assert facts["race_of_a_training_step_on_threads"] == -4.0  # one after the other: -2
