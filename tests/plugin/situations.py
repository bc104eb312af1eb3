"""A test file with one test for each way in which a test meets findings."""

SITUATIONS = """
import unittest

import pytest
import torch
from joblib import Parallel, delayed


def add(tensor, number):
    return tensor + number


def evaluate(model, number):
    return model(torch.ones(2)).detach() * number


def results(n_jobs=2):
    x = torch.ones(3, requires_grad=True)
    tasks = [delayed(add)(x.clone(), number) for number in range(2)]
    return sum(Parallel(n_jobs=n_jobs, backend="multiprocessing")(tasks)).mean()


def lose():
    results().backward()


def test_clean():
    results(n_jobs=1).backward()


def test_crossing():
    results()


def test_backward():
    lose()


def test_parameters():
    tasks = [delayed(evaluate)(torch.nn.Linear(2, 1), number) for number in range(2)]
    Parallel(n_jobs=2, backend="multiprocessing")(tasks)


def test_own_failure():
    lose()
    assert "mine" == "not the finding"


@pytest.mark.xfail
def test_expected():
    lose()


@pytest.mark.xfail(strict=True)
def test_expected_strictly():
    lose()


def test_skipped():
    lose()
    pytest.skip("not today")


@pytest.fixture
def losing_at_the_end():
    yield
    lose()


def test_teardown(losing_at_the_end):
    pass


@pytest.fixture(scope="module")
def shared():
    return results()


def test_first_user(shared):
    pass


def test_second_user(shared):
    shared.backward()


@pytest.fixture
def losing_at_the_start():
    lose()


def test_setup(losing_at_the_start):
    pass


@pytest.fixture
def losing_and_failing():
    lose()
    raise RuntimeError("the fixture's own")


def test_setup_fails(losing_and_failing):
    pass


@pytest.mark.gradguard(allow=["GG10"], reason="shown to be allowed")
def test_allowed():
    lose()


@pytest.mark.gradguard(fail_on="never")
def test_never():
    lose()


@pytest.mark.gradguard(fail_on="never", allow=["GG101"])
class TestMarked:
    @pytest.mark.gradguard(fail_on="warning", allow=["GG103"])
    def test_closest(self):
        lose()


class TestCase(unittest.TestCase):
    def test_backward(self):
        lose()

    def test_own_failure(self):
        lose()
        self.fail("mine")


def test_fixture(gradguard):
    with gradguard.allow("GG1", reason="not yet"):
        lose()
    assert gradguard.findings == []
    results()
    assert [finding.code for finding in gradguard.findings] == ["GG101", "GG102"]
"""
