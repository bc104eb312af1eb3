"""Parallel searches of scikit-learn and skorch."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("sklearn") and find_spec("skorch")),
    reason="torch, scikit-learn or skorch is not installed",
)


@pytest.fixture(scope="module")
def facts(facts_of):
    return facts_of("estimators")


def test_a_search_over_a_module_class_pickles_no_parameter(facts):
    """A parallel search over a skorch net with a module class pickles no parameter."""
    assert facts["skorch_with_a_class"]["pickled"] == 0


def test_a_search_over_a_module_instance_pickles_parameters_that_require_grad(facts):
    """A parallel search over a net with a module instance pickles parameters that require grad."""
    found = facts["skorch_with_an_instance"]
    assert found["pickled"] > 0
    assert found["all require grad"]


def test_an_estimators_last_loss_comes_back_as_a_leaf(facts):
    """A loss that an estimator keeps comes back from a process as a leaf, without its `grad_fn`."""
    found = facts["estimator_that_keeps_its_loss"]
    assert found == {"1": [True, True, True, True], "2": [False, False, True, True]}


def test_scikit_learn_wraps_joblib_and_drops_history_as_it_does(facts):
    """`sklearn.utils.parallel` wraps joblib, and drops graphs like joblib."""
    assert facts["scikit_learn_wraps_joblib"] == [True, [True, True]]
