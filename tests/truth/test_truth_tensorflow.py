"""TensorFlow and Keras: tapes, copies and forks."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("tensorflow", "joblib", "dask", "sklearn"))),
    reason="TensorFlow, joblib, dask or scikit-learn is not installed",
)

HAS_WRAPPERS = Version(version("keras") if find_spec("keras") else "0") >= Version("3.8")
linux = pytest.mark.skipif(sys.platform != "linux", reason="native threads at a fork: Linux")


@pytest.fixture(scope="module")
def here(facts_of):
    return facts_of("tf_tape")


@pytest.fixture(scope="module")
def crossing(facts_of):
    return facts_of("tf_crossing")


def test_a_tape_does_not_see_worker_threads(here):
    """A `GradientTape` does not record what worker threads compute: the gradient is `None`."""
    assert here["tape_around_threads"] is None
    assert here["tape_around_one_job"] == [3.0, 3.0]
    assert here["keras_forward_in_threads_under_a_tape"] == [None, None]


def test_a_loss_made_in_both_places_gives_a_partial_gradient(here):
    """A loss computed partly in worker threads has only the part of the gradient of the parent."""
    assert here["partial_gradient"] == {"threads": [1.0, 2.0], "one job": [4.0, 5.0]}


def test_a_tape_inside_the_worker_is_right(here, crossing):
    """A tape inside the worker gives the right gradient, in threads and in processes."""
    assert here["tape_inside_threads"] == [3.0, 3.0]
    assert crossing["tape_inside_loky"] == [3.0, 3.0]


def test_a_tape_does_not_see_loky_workers(crossing):
    """A tape around loky workers gives `None`."""
    assert crossing["tape_around_loky"] is True


def test_a_forward_accumulator_does_not_see_worker_threads(here):
    """A `ForwardAccumulator` does not record what worker threads compute."""
    assert here["forward_accumulator_around_threads"] == [None, 6.0]


def test_neither_do_jacobians_nor_what_the_tape_was_told_to_watch(here, crossing):
    """`jacobian`, `batch_jacobian` and `tape.watch` lose the same gradients."""
    zeros = [[[0.0, 0.0], [0.0, 0.0]]]  # a batch jacobian never is None
    assert here["other_gradients_around_threads"] == [zeros, None]
    assert crossing["watched_tensor"] == [["EagerTensor", [2.0, 4.0]], True]
    assert crossing["partial_gradient_around_loky"] == [1.0, 2.0]  # and not [7, 8]


def test_a_tape_that_has_stopped_recording_loses_nothing(here):
    """Inside `tape.stop_recording()`, workers lose nothing."""
    assert here["stopped_recording_around_threads"] == [9.0, 9.0]


def test_tensorflow_tells_which_tapes_record_in_a_thread_and_what_they_watch(here):
    """TensorFlow reports which tapes record in a thread, and what they watch."""
    found = here["what_tells_of_tapes"]
    assert found["here"] == [[True], [False, True, False], [True, False, False], [True], [False]]
    assert found["elsewhere"] == [[True, False, False], [False, True, False], [True, False, False]]


def test_tensorflow_tells_which_variables_a_thread_reads(here):
    """TensorFlow reports which variables a thread reads."""
    assert here["what_tells_of_variables"] == [True, 2]


def test_a_layer_of_two_models_is_shared_no_longer(crossing):
    """A layer that two models share is two layers once the models were pickled in two tasks."""
    assert crossing["layer_of_two_models"] == [True, False]


def test_a_tape_of_the_parent_can_be_asked_from_threads(here):
    """Threads can call `gradient` on a tape of the parent."""
    assert here["gradient_called_from_threads"] == [[1.0, 1.0], [2.0, 2.0]]


def test_parallel_inside_a_function_runs_at_trace_time_only(here):
    """A `Parallel` inside a `tf.function` runs only while the function is traced."""
    found = here["parallel_inside_a_function"]
    assert found["calls"] == 2  # of two calls with two tasks each
    assert found["results"] == [3.0, 3.0]  # the variable's change to 10 is not seen
    assert found["symbols"]["raises"] == "TypeError"


def test_apply_gradients_refuses_only_when_all_are_none(here):
    """`apply_gradients` raises only if all gradients are `None`, not if some are."""
    assert here["apply_gradients"] == {"all": "ValueError", "some": False}


def test_assign_from_threads_loses_updates_and_assign_add_does_not(here):
    """`assign` from several threads loses updates; `assign_add` does not."""
    assert here["lost_updates_from_threads"] == [1, 1000]


def test_what_pickles(here):
    """An open tape, a `tf.function` and a dataset cannot be pickled; an idle tape can."""
    assert here["what_pickles"] == {
        "open tape": "raises",
        "idle tape": True,
        "traced function": "raises",
        "concrete function": "raises",
        "dataset": "raises",
    }


def test_an_optimizer_with_moments_loses_its_state_when_pickled_alone(here, crossing):
    """A Keras optimizer with slots that is pickled without its model arrives unbuilt, at step 0."""
    assert here["optimizer_pickled_alone"] == {
        "Adam": [1, False, 0],
        "SGD with momentum": [1, False, 0],
        "SGD": [1, False, 1],
        "SGD with averages": [1, False, 0],
        "scaled Adam": [1, False, 0],
        "scaled SGD": [1, False, 1],
    }
    assert here["optimizer_inside_its_model"] == [True, 1]
    assert crossing["optimizer_argument"] == [False, 0]
    assert crossing["returned_optimizer"] == [False, 0]


def test_map_fn_runs_one_by_one_in_eager_mode(here):
    """In eager mode, `tf.map_fn` runs one example after the other in the calling thread."""
    assert here["map_fn_in_eager_mode"] == [1, True, 8]


def test_map_fn_refuses_autotune_and_a_tensor_spec_needs_a_shape(here):
    """`tf.map_fn` refuses `AUTOTUNE`, and a `TensorSpec` needs a shape."""
    assert here["map_fn_autotune"] == "TypeError"
    assert "shape" in here["tensor_spec_without_shape"]["says"]


def test_batched_per_example_gradients_are_those_of_the_loop(here):
    """Per-example gradients by `vectorized_map` or `jacobian` equal those of a loop."""
    assert max(here["per_example_gradients"]) <= 1e-6


def test_the_scikit_learn_wrappers_are_gone(here):
    """`keras.wrappers.scikit_learn` no longer exists."""
    assert here["removed_wrappers"] == {
        "tensorflow.keras": "ModuleNotFoundError",
        "keras": "ModuleNotFoundError",
        "attribute": "AttributeError",
        "instead": HAS_WRAPPERS,
    }


def test_predict_computes_a_dask_array_whole_and_once(here):
    """`predict` on a dask array computes the whole array, once."""
    expected = {"type": "ndarray", "computes": 1, "blocks": 4}
    assert here["predict_on_a_dask_array"] == expected


def test_variables_tensors_and_models_arrive_as_copies(crossing):
    """Variables, tensors and models arrive in a worker process as copies."""
    found = crossing["variables"]
    kind = "ResourceVariable"
    assert found["workers"] == [[kind, True, [2.0]], [kind, False, [2.0]]]
    assert found["parent"] == [1.0]
    assert crossing["eager_tensor"] == ["EagerTensor", [1.0]]
    assert crossing["keras_model_and_layer"] == [[False, False, True, True], [True, True]]


def test_fit_in_a_worker_does_not_change_the_parent(crossing):
    """`fit` in a worker process does not change the model of the parent."""
    assert crossing["fit_in_a_worker"] == {"raises": False, "parent moved": False}


@pytest.mark.skipif(not HAS_WRAPPERS, reason="new in Keras 3.8")
def test_a_search_over_a_keras_wrapper_pickles_no_model(crossing):
    """A parallel search over a Keras wrapper pickles no model."""
    assert crossing["searches_over_wrappers"] == {"search": 0, "model as argument": True}


def test_visible_devices_may_be_set_again_but_not_changed(crossing):
    """`set_visible_devices` raises in a reused worker that has initialised other devices."""
    found = crossing["visible_devices_in_reused_workers"]
    assert found["same"] == ["set"]
    assert found["changing"]["raises"] == "RuntimeError"
    assert "cannot be modified after being initialized" in found["changing"]["says"]


def test_the_environment_of_a_reused_worker_stays(crossing):
    """What a task sets in `os.environ` is still set for later tasks of the same worker."""
    assert crossing["environment_of_reused_workers"]["stays"] is True


@pytest.fixture(scope="module")
def forks_that_work(facts_of):
    return facts_of(
        "tf_fork",
        "only_imported_in_parent",  # first: the others use TensorFlow in the parent
        "random_numbers_unseeded",
        "random_numbers_seeded",
        "small_operations",
        "numpy_in_workers",
    )


@linux
def test_a_fork_that_works(forks_that_work):
    """A forked worker can compute if the parent imported TensorFlow or ran small operations."""
    assert forks_that_work["only_imported_in_parent"] == [1000.0**2] * 2
    assert forks_that_work["small_operations"] == [2.0, 2.0]
    assert forks_that_work["numpy_in_workers"] == [1000.0**2] * 2


@linux
def test_forked_workers_draw_the_same_numbers_once_the_parent_has_a_seed(forks_that_work):
    """Forked workers draw the same numbers once the parent has called `tf.random.set_seed`."""
    assert len(set(forks_that_work["random_numbers_unseeded"])) == 4
    assert len(set(forks_that_work["random_numbers_seeded"])) == 1


@linux
def test_operations_before_and_after_a_fork_hang(hangs):
    """Large operations in the parent, and then in a forked worker, hang."""
    hang = hangs("tf_fork", "large_in_parent_and_workers", after="forking")
    assert hang.hung
    assert hang.workers_outlive_the_parent


@linux
def test_what_has_variables_starts_the_threads_as_an_operation_does(facts_of):
    """Creating anything with variables starts TensorFlow's threads, like an operation."""
    awake = facts_of("tf_awake")["awake"]
    assert {name for name, yes in awake.items() if not yes} == {
        "layer",
        "Input",
        "Sequential",
        "Sequential without weights",
        "schedule",
        "loss",
    }
