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
