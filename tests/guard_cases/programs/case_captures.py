"""Tensors that reach loky workers inside the function: closures, globals, attributes, defaults.

A function that a worker can import by name takes nothing along; one that it cannot (a lambda, a
nested function) is pickled by value, with everything that it refers to.
"""

import collections
import functools

import torch
from joblib import Parallel, delayed, wrap_non_picklable_objects
from torch import nn

EXPECT = {
    "test_self_method": {"GG101"},
}

DETAILS = {
    "test_closure": {"GG101": {"direction": "capture", "shape": [3], "backend": "loky"}},
    "test_lambda_over_a_local": {"GG101": {"direction": "capture", "shape": [4]}},
    "test_lambda_over_a_module_global": {"GG101": {"direction": "capture", "shape": [2]}},
    "test_partial_as_argument": {"GG101": {"direction": "argument", "shape": [3]}},
}

SHARED = torch.ones(2, requires_grad=True)


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def scaled(x, k):
    return float(x.detach().sum()) * k


def scaled_by(k, x=None):
    return float(x.detach().sum()) * k


def uses_shared(k):
    return float(SHARED.detach().sum()) * k


def with_default(k, w=SHARED * 3):
    return float(w.detach().sum()) * k


def apply(function, *args):
    return function(*args)


class Task:
    def __init__(self, weight):
        self.weight = weight

    def run(self, k):
        return float(self.weight.detach().sum()) * k

    def start(self):
        return Parallel(n_jobs=2)(delayed(self.run)(k) for k in range(2))  # -> GG101

    def start_with_others(self):
        return Parallel(n_jobs=2)(delayed(self.run)(k) for k in range(2))


class SubTask(Task):
    def __init__(self, weight):
        super().__init__(torch.zeros(2))
        self.extra = collections.OrderedDict(weight=weight)

    def run(self, k):
        return float(self.extra["weight"].detach().sum()) * k


class CallableTask(Task):
    def __call__(self, k):
        return self.run(k)


class Registry:
    weight = torch.ones(2, requires_grad=True)

    @classmethod
    def total(cls, k):
        return float(cls.weight.detach().sum()) * k

    @staticmethod
    def double(k):
        return 2 * k


class Lazy:
    def __init__(self, size):
        self.size = size

    @property
    def weight(self):
        return torch.ones(self.size, requires_grad=True)

    def run(self, k):
        return float(self.weight.detach().sum()) * k


def twice(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)

    return wrapper


def test_closure():
    x = leaf(3)

    def work(k):
        return float(x.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_closure_with_history():
    x = leaf(3)
    y = (x * 2).relu()

    def work(k):
        return y.grad_fn is None and float(y.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2)) == [6.0, 12.0]  # -> GG101


def test_closure_over_a_container():
    config = {"layers": [{"weight": leaf(3)}], "k": 2}

    def work(k):
        return float(config["layers"][0]["weight"].detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_closure_two_levels_up():
    x = leaf(3)

    def outer(k):
        def inner():
            return float(x.detach().sum()) * k

        return inner()

    assert Parallel(n_jobs=2)(delayed(outer)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_lambda_over_a_local():
    x = leaf(4)
    out = Parallel(n_jobs=2)(
        delayed(lambda k: float(x.detach().sum()) * k)(k) for k in (1, 2)
    )  # -> GG101
    assert out == [4.0, 8.0]


from_global = lambda k: float(SHARED.detach().sum()) * k  # noqa: E731


def test_lambda_over_a_module_global():
    assert Parallel(n_jobs=2)(delayed(from_global)(k) for k in (1, 2)) == [2.0, 4.0]  # -> GG101


def test_nested_function_over_a_module_global():
    def work(k):
        return float(SHARED.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2)) == [2.0, 4.0]  # -> GG101


def test_helper_of_a_nested_function():
    w = leaf(2)

    def helper(k):
        return float(w.detach().sum()) * k

    def work(k):
        return helper(k) + 1

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2)) == [3.0, 5.0]  # -> GG101


def test_default_argument():
    w = leaf(2)

    def work(k, weight=w):
        return float(weight.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2)) == [2.0, 4.0]  # -> GG101


def test_keyword_only_default():
    w = leaf(2)

    def work(k, *, weight=w * 1):
        return float(weight.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2)) == [2.0, 4.0]  # -> GG101


def test_partial_positional():
    work = functools.partial(scaled, leaf(3))
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_partial_keyword():
    work = functools.partial(scaled_by, x=leaf(3))
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_partial_of_partial():
    work = functools.partial(functools.partial(apply, scaled), leaf(3) * 2)
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 6.0]  # -> GG101


def test_partial_as_argument():
    work = functools.partial(scaled, leaf(3))
    assert Parallel(n_jobs=2)(delayed(apply)(work, k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_bound_method():
    task = Task(leaf(3))
    assert Parallel(n_jobs=2)(delayed(task.run)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_self_method():
    assert Task(leaf(3)).start() == [0.0, 3.0]


def test_inherited_method():
    task = SubTask(leaf(3))
    assert Parallel(n_jobs=2)(delayed(task.run)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_callable_object():
    task = CallableTask(leaf(3))
    assert Parallel(n_jobs=2)(delayed(task)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_local_class():
    class Local:
        def __init__(self):
            self.weight = leaf(3)

        def run(self, k):
            return float(self.weight.detach().sum()) * k

    task = Local()
    assert Parallel(n_jobs=2)(delayed(task.run)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_local_class_attribute():
    class Local:
        weight = leaf(3)

        @classmethod
        def run(cls, k):
            return float(cls.weight.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(Local.run)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def test_bound_method_of_the_tensor():
    x = leaf(3)
    assert Parallel(n_jobs=2)(delayed(x.dim)() for _ in range(2)) == [1, 1]  # -> GG101


def test_decorated_nested_function():
    x = leaf(3)

    @twice
    def work(k):
        return float(x.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 6.0]  # -> GG101


def test_wrapped_non_picklable():
    x = leaf(3)

    @wrap_non_picklable_objects
    def work(k):
        return float(x.detach().sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]  # -> GG101


def run_named(table, name, k):
    return table[name](k)


def test_lambda_in_a_dictionary():
    x = leaf(3)
    table = {"f": lambda k: float(x.detach().sum()) * k}
    out = Parallel(n_jobs=2)(delayed(run_named)(table, "f", k) for k in range(2))  # -> GG101
    assert out == [0.0, 3.0]


def test_callback_argument():
    target = leaf(3)

    def loss(k):
        return float(((target - k) ** 2).sum())

    assert Parallel(n_jobs=2)(delayed(apply)(loss, k) for k in range(2)) == [3.0, 0.0]  # -> GG101


# --- nothing to report ---------------------------------------------------------------------


def test_closure_over_a_detached_tensor():
    x = leaf(3)
    fixed = x.detach()

    def work(k):
        return float(fixed.sum()) * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]
    assert x.requires_grad


def test_closure_over_numbers():
    x = leaf(3)
    size, mean = len(x), x.mean().item()

    def work(k):
        return size * mean * k

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]


def test_closure_over_a_module():
    model = nn.Linear(3, 1)

    def work(k):
        with torch.no_grad():
            return float(model(torch.full((3,), float(k))))

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [work(0), work(1)]


def test_closure_that_does_not_use_it():
    x = leaf(3)
    k0 = 5

    def work(k):
        return k + k0

    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [5, 6]
    assert x.grad is None


def test_importable_function_over_a_global():
    assert Parallel(n_jobs=2)(delayed(uses_shared)(k) for k in (1, 2)) == [2.0, 4.0]


def test_importable_function_with_tensor_default():
    assert Parallel(n_jobs=2)(delayed(with_default)(k) for k in (1, 2)) == [6.0, 12.0]


def test_classmethod_over_a_class_attribute():
    assert Parallel(n_jobs=2)(delayed(Registry.total)(k) for k in (1, 2)) == [2.0, 4.0]


def test_staticmethod():
    assert Parallel(n_jobs=2)(delayed(Registry.double)(k) for k in (1, 2)) == [2, 4]


def test_bound_method_of_a_module():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(model.state_dict)() for _ in range(2))
    assert all(torch.equal(state["weight"], model.weight) for state in out)


def test_bound_method_of_a_clean_object():
    x = leaf(3)
    task = Task(x.detach())
    assert task.start_with_others() == [0.0, 3.0]


def test_partial_with_detached():
    work = functools.partial(scaled, leaf(3).detach())
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, 3.0]


def loss_of(model, k):
    with torch.no_grad():
        return float(model(torch.ones(3)).sum()) * k


def test_partial_with_a_module():
    model = nn.Linear(3, 1)
    work = functools.partial(loss_of, model)
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(2)) == [0.0, work(1)]


def test_property_makes_it():
    task = Lazy(3)
    assert Parallel(n_jobs=2)(delayed(task.run)(k) for k in range(2)) == [0.0, 3.0]


def test_callable_object_without_tensors():
    task = CallableTask(torch.ones(3))
    assert Parallel(n_jobs=2)(delayed(task)(k) for k in range(2)) == [0.0, 3.0]
