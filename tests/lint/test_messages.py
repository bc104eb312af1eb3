"""What findings say of a program: in its own names, and once."""

from __future__ import annotations

DECORATED = """\
import functools

import torch
from joblib import Parallel, delayed


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@timed
def fit(seed):
    weights = torch.zeros(3, requires_grad=True)
    return (weights - seed).sum()


Parallel(2)(delayed(fit)(seed) for seed in range(2))
"""


def test_a_decorated_worker_goes_by_its_own_name(project):
    project.write("program.py", DECORATED)
    (found,) = project.lint(json_output=True).json["findings"]
    assert found["location"]["function"] == "fit"
    assert found["message"].startswith("`fit` returns a tensor")
    assert found["trace"][0]["message"] == "`fit` runs in loky workers"
    assert found["edits"] is None  # the wrapper may do anything with what it is given


def test_one_function_that_seeds_all_generators_is_one_finding(project):
    source = """\
import random

import numpy as np
import torch
from joblib import Parallel, delayed


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def sample(seed):
    seed_everything(seed)
    np.random.seed(seed + 1)
    return torch.randn(3).tolist(), np.random.rand(), random.random()


Parallel(n_jobs=4, backend="threading")(delayed(sample)(seed) for seed in range(8))
"""
    project.write("program.py", source)
    own, all_of_them = project.lint(json_output=True).json["findings"][::-1]
    assert all_of_them["location"]["line"] == 9
    assert all_of_them["message"].startswith(
        "`random.seed()`, `numpy.random.seed()` and `torch.manual_seed()` seed the generators"
    )
    assert "`random.Random(seed)`" in all_of_them["fix"]
    assert "`np.random.default_rng(seed)`" in all_of_them["fix"]
    assert [(step["line"], step["message"]) for step in all_of_them["trace"][2:]] == [
        (10, "`numpy.random.seed()` seeds one, too"),
        (11, "`torch.manual_seed()` seeds one, too"),
    ]
    assert own["location"]["line"] == 16
    assert own["message"].startswith("`numpy.random.seed()` seeds the generator that")
    assert "`random.Random(seed)`" not in own["fix"]
