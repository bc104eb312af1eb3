"""Whose finding it is: parametrized tests, classes, fixtures, expected failures, unittest."""

import unittest

import pytest
import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_parametrized_shipping[leaf]": {"GG101"},
    "test_parametrized_shipping[history]": {"GG101"},
    "test_parametrized_shipping[detached]": set(),
    "test_parametrized_shipping[parameter]": set(),
    "test_parametrized_jobs[1]": set(),
    "test_parametrized_jobs[2]": {"GG101", "GG102", "GG103"},
    "test_two_parameters[threading-1]": set(),
    "test_two_parameters[threading-2]": set(),
    "test_two_parameters[loky-1]": set(),
    "test_two_parameters[loky-2]": {"GG101", "GG102", "GG103"},
    "TestInClass::test_ships": {"GG101"},
    "TestSetup::test_first": {"GG101", "GG102"},
    "TestSetup::test_second": {"GG101", "GG102"},
    "TestTeardown::test_clean_body": {"GG101"},
    "test_first_user_of_the_module_fixture": {"GG101", "GG102"},
    "test_function_fixture": {"GG102"},
    "test_function_fixture_again": {"GG102", "GG103"},
    "test_yield_fixture": {"GG101"},
    "test_fixture_from_a_fixture": {"GG101"},
    "test_expected_failure": {"GG101", "GG102", "GG103"},
    "test_expected_to_raise": {"GG101"},
    "test_skipped_after_a_call": {"GG101"},
    "test_made_here": {"GG101", "GG102"},
    "UnitTests::test_lost": {"GG101", "GG102", "GG103"},
    "UnitTests::test_kept": set(),
}

KEPT = {}


def leaf():
    return torch.ones(3, requires_grad=True)


def number(x):
    return float(x.detach().sum())


def times(x, k):
    return x * k


def forward(model, rows):
    with torch.no_grad():
        return float(model(rows).sum())


def ship(x):
    assert Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2)) == [3.0, 3.0]  # -> GG101


def ship_and_return(x, **options):
    return Parallel(**options)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102


FORMS = {
    "leaf": leaf,
    "history": lambda: leaf() * 1,
    "detached": lambda: leaf().detach(),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_parametrized_shipping(form):
    ship(form())


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_parametrized_jobs(n_jobs):
    x = leaf()
    sum(ship_and_return(x, n_jobs=n_jobs)).sum().backward()  # -> GG103:error
    assert (x.grad is None) == (n_jobs == 2)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_two_parameters(backend, n_jobs):
    x = leaf()
    sum(ship_and_return(x, backend=backend, n_jobs=n_jobs)).sum().backward()  # -> GG103:error
    assert (x.grad is None) == (backend == "loky" and n_jobs == 2)


class TestInClass:
    weight = torch.ones(3, requires_grad=True)

    def test_ships(self):
        ship(self.weight)

    def test_clean(self):
        ship(self.weight.detach())

    def test_ships_own_model(self):
        self.model = nn.Linear(3, 1)
        rows = torch.ones(2, 3)
        out = Parallel(n_jobs=2)(delayed(forward)(self.model, rows) for _ in range(2))
        assert out == [forward(self.model, rows)] * 2


class TestSetup:
    def setup_method(self):
        self.out = ship_and_return(leaf(), n_jobs=2)

    def test_first(self):
        assert self.out[0].is_leaf

    def test_second(self):
        assert self.out[1].tolist() == [2.0] * 3


class TestTeardown:
    def teardown_method(self):
        ship(leaf())

    def test_clean_body(self):
        ship(torch.ones(3))


@pytest.fixture(scope="module")
def results():
    return ship_and_return(leaf(), n_jobs=2)


def test_first_user_of_the_module_fixture(results):
    assert results[1].tolist() == [2.0] * 3


def test_later_user_that_goes_backward(results):
    sum(results).sum().backward()  # -> GG103:error
    assert results[0].grad is not None


def test_later_user_that_does_not(results):
    assert not results[0].detach().requires_grad


def live(k):
    return torch.ones(3, requires_grad=True) * k


@pytest.fixture
def losses():
    return Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102


def test_function_fixture(losses):
    assert losses[0].is_leaf


def test_function_fixture_again(losses):
    sum(losses).sum().backward()  # -> GG103:warning


@pytest.fixture
def closing():
    yield leaf()
    ship(leaf())


def test_yield_fixture(closing):
    assert closing.requires_grad


@pytest.fixture
def inner():
    ship(leaf())
    return 2


@pytest.fixture
def outer(inner):
    return inner * 2


def test_fixture_from_a_fixture(outer):
    assert outer == 4


@pytest.mark.xfail(reason="the gradient is lost in the workers", strict=True)
def test_expected_failure():
    x = leaf()
    sum(ship_and_return(x, n_jobs=2)).sum().backward()  # -> GG103:error
    assert x.grad is not None


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_expected_to_raise():
    ship(leaf())
    raise ZeroDivisionError


def test_skipped_inside():
    pytest.skip("nothing to do here")


def test_skipped_after_a_call():
    ship(leaf())
    raise unittest.SkipTest("enough")


def test_between():
    ship(torch.ones(3))


def test_made_here():
    KEPT["out"] = ship_and_return(leaf(), n_jobs=2)


def test_backward_here():
    out = KEPT.pop("out")
    sum(out).sum().backward()  # -> GG103:error
    assert out[0].grad is not None


class UnitTests(unittest.TestCase):
    def setUp(self):
        self.x = leaf()

    def test_lost(self):
        sum(ship_and_return(self.x, n_jobs=2)).sum().backward()  # -> GG103:error
        self.assertIsNone(self.x.grad)  # noqa: PT009

    def test_kept(self):
        sum(ship_and_return(self.x, n_jobs=2, prefer="threads")).sum().backward()  # -> GG103
        self.assertIsNotNone(self.x.grad)  # noqa: PT009

    def test_subtests(self):
        for scale in (1.0, 2.0):
            with self.subTest(scale=scale):
                x = self.x * scale
                out = Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))  # -> GG101
                self.assertEqual(out, [3.0 * scale] * 2)  # noqa: PT009
