"""What a torch tensor keeps on its way to a worker and back."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("joblib") and find_spec("numpy")),
    reason="torch, joblib or NumPy is not installed",
)

PROCESSES = ("loky", "multiprocessing")


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("torch_crossing")


def nature(**differences):
    usual = {
        "requires_grad": True,
        "leaf": True,
        "history": False,
        "grad": False,
        "parameter": False,
    }
    return usual | differences


def test_a_leaf_stays_a_leaf_that_requires_grad(facts):
    """A leaf that requires grad arrives as a leaf that requires grad."""
    assert facts["leaf_argument"] == dict.fromkeys((*PROCESSES, "threading"), nature())


def test_only_threads_get_the_same_object(facts):
    """Threads get the tensor itself; processes get a copy."""
    assert facts["the_same_object"] == {"loky": False, "multiprocessing": False, "threading": True}


@pytest.mark.parametrize("case", ["clone_argument", "product_argument", "result_with_history"])
def test_history_is_dropped_by_process_workers_alone(facts, case):
    """Process workers drop the graph of arguments and results; threads keep it."""
    fresh_leaf = dict.fromkeys(PROCESSES, nature())
    assert facts[case] == fresh_leaf | {"threading": nature(leaf=False, history=True)}


def test_a_parameter_arrives_as_a_parameter(facts):
    """A parameter arrives as a parameter."""
    arrived = nature(parameter=True)
    assert facts["parameter_argument"] == dict.fromkeys((*PROCESSES, "threading"), arrived)


def test_the_parameters_of_a_module_still_require_grad(facts):
    """The parameters of a module still require grad when it arrives."""
    arrived = [nature(parameter=True)] * 2
    assert facts["module_argument"] == dict.fromkeys((*PROCESSES, "threading"), arrived)


@pytest.mark.parametrize(
    ("case", "parameter"),
    [("grad_of_tensor_argument", False), ("grad_of_parameter_argument", True)],
)
def test_grad_is_dropped_on_the_way_to_a_process(facts, case, parameter):
    """The `.grad` of a tensor is dropped on the way to a process."""
    lost, kept = nature(parameter=parameter), nature(parameter=parameter, grad=True)
    assert facts[case] == dict.fromkeys(PROCESSES, lost) | {"threading": kept}


def test_the_grads_of_a_module_are_dropped_on_the_way_to_a_process(facts):
    """The `.grad` of each parameter of a module is dropped on the way to a process."""
    lost, kept = nature(parameter=True), nature(parameter=True, grad=True)
    expected = dict.fromkeys(PROCESSES, [lost] * 2) | {"threading": [kept] * 2}
    assert facts["grad_of_module_argument"] == expected


def test_grad_is_dropped_on_the_way_back(facts):
    """The `.grad` of a tensor or module is dropped on the way back from a process."""
    expected = {
        "loky": [False, False],
        "multiprocessing": [False, False],
        "threading": [True, True],
    }
    assert facts["grad_of_results"] == expected


def test_a_state_dict_holds_plain_tensors(facts):
    """A state dict comes back as plain tensors that do not require grad."""
    plain = [["Tensor", False]] * 2
    assert facts["state_dict_result"] == dict.fromkeys((*PROCESSES, "threading"), plain)


def test_a_backward_stops_silently_at_the_result(facts):
    """A backward pass stops at the result of a process worker, without an error."""
    stopped = {"source": None, "result": [0.5, 0.5]}
    correct = {"source": [3.0, 3.0], "result": None}
    expected = dict.fromkeys(PROCESSES, stopped) | {"threading": correct}
    assert facts["backward_through_results"] == expected


def test_a_loss_made_in_both_places_gives_a_partial_gradient(facts):
    """A loss computed partly in a process worker has only the gradient of the parent's part."""
    expected = {"loky": [2.0, 2.0], "multiprocessing": [2.0, 2.0], "threading": [5.0, 5.0]}
    assert facts["loss_made_in_both_places"] == expected


def test_a_global_of_main_goes_with_its_function(facts):
    """A global of `__main__` is sent with the function that uses it."""
    found = facts["global_of_main"]
    assert found["seen"] == dict.fromkeys((*PROCESSES, "threading"), nature())
    assert found["marked"]  # by the threads: they share it


@pytest.mark.parametrize("kind", ["closure", "lambda"])
def test_a_captured_tensor_is_pickled_by_loky_alone(facts, kind):
    """loky pickles the tensors that a closure or lambda captures; multiprocessing raises."""
    found = facts["closure_and_lambda"][kind]
    assert found["loky"] == [True, True]
    assert found["threading"] == [True, False]
    assert "local object" in found["multiprocessing"]["says"]


def test_a_backward_in_a_worker_reaches_the_parent_from_threads_alone(facts):
    """Gradients of a backward pass in a thread reach the parent; those in a process do not."""
    expected = {"loky": None, "multiprocessing": None, "threading": 8 * 200.0}
    assert facts["backward_in_the_worker"] == expected


def test_delayed_backward_and_step_succeed_and_do_nothing(facts):
    """`delayed(loss.backward)` and `delayed(optimizer.step)` change nothing in the parent."""
    assert facts["bound_methods_that_succeed"] == [True, True]


def test_a_layer_of_two_models_is_shared_within_one_task_only(facts):
    """Two models that share a layer still share it in one task, but not in two tasks."""
    found = facts["layer_shared_by_two_models"]
    assert found["in one task"] == dict.fromkeys((*PROCESSES, "threading"), True)
    assert found["in two tasks"] is False


def test_hooks_of_parameters_stay_behind_silently_and_those_of_modules_travel(facts):
    """Hooks of parameters are dropped on the way to a process; hooks of modules are not."""
    found = facts["hooks_of_a_module_and_its_parameter"]
    for backend in PROCESSES:
        assert found[backend] == {"of the parameter": [False] * 2, "of the module": [True] * 2}
    assert found["threading"] == {"of the parameter": [True] * 2, "of the module": [True] * 2}


def test_running_statistics_stay_in_a_process(facts):
    """Running statistics that a process worker updates do not come back with the gradients."""
    found = facts["statistics_after_gradients_from_a_worker"]
    assert found == {**{key: [0.0, 0] for key in PROCESSES}, "threading": [pytest.approx(0.2), 1]}


def test_batch_norm_changes_its_statistics_without_counting_that(facts):
    """Batch norm updates its statistics without a new `_version`; its module counts batches."""
    found = facts["what_counts_a_change_of_statistics"]
    assert found == {"counts": [0, 1, 0, 1], "changed": [True] * 4, "instance": 0}


def test_an_optimizer_keeps_the_parameters_that_were_sent(facts):
    """An optimizer still steps the old parameters when a worker's copy replaces the model."""
    found = facts["old_optimizer_and_returned_model"]
    assert found == {
        **{key: [True, [1.0, 2.0]] for key in PROCESSES},
        "threading": [False, [1.0] * 2],
    }
