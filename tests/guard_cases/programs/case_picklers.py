"""Programs that have a say in the pickling: their reducers and picklers stay in force."""

import copyreg
import pickle

import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky import set_loky_pickler
from torch import nn

MAY = {
    "test_subclass_that_detaches_itself": {"GG101"},
    "test_reducer_in_the_dispatch_table": {"GG101"},
    "test_object_that_pickles_itself_to_bytes": {"GG101"},
    "test_forward_reducers": {"GG101"},
    "test_multiprocessing_reducer": {"GG101"},
}


class Labelled(torch.Tensor):
    """Takes its label along."""

    label = "none"

    def __reduce_ex__(self, protocol):
        return make_labelled, (self.detach().tolist(), self.requires_grad, self.label)


class SelfDetaching(torch.Tensor):
    def __reduce_ex__(self, protocol):
        return torch.tensor, (self.detach().tolist(),)


class Bytes:
    """Pickles what it holds on its own."""

    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        return {"bytes": pickle.dumps(self.value)}

    def __setstate__(self, state):
        self.value = pickle.loads(state["bytes"])


class Waking:
    def __init__(self, weight):
        self.weight = weight
        self.awake = False

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.awake = True


def make_labelled(values, requires_grad, label):
    tensor = torch.tensor(values).as_subclass(Labelled)
    tensor.label = label
    return tensor.requires_grad_(requires_grad)


def to_plain(tensor):
    return torch.tensor, (tensor.detach().tolist(),)


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k):
    return x * k


def number(x):
    return float(x.detach().sum())


def describe(x):
    return type(x).__name__, x.requires_grad, getattr(x, "label", None)


def labelled(k):
    tensor = make_labelled([1.0, 1.0], True, "own") * k
    tensor.label = f"k={k}"
    return tensor


def value_of(item):
    return number(item.value)


def awake(item):
    return item.awake, number(item.weight)


@pytest.fixture
def pickler():
    yield set_loky_pickler
    set_loky_pickler()


def test_standard_pickler(pickler):
    pickler("pickle")
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_standard_pickler_refuses_lambdas(pickler):
    pickler("pickle")
    with pytest.raises(pickle.PicklingError):
        Parallel(n_jobs=2)(delayed(lambda k: k)(k) for k in (1, 2))


def test_cloudpickle_by_name(pickler):
    pickler("cloudpickle")
    x = leaf()
    assert Parallel(n_jobs=2)(delayed(lambda k: number(x) * k)(k) for k in (1, 2)) == [
        3.0,
        6.0,
    ]  # -> GG101


def test_back_to_the_default():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(lambda k: x * k)(k) for k in (1, 2))  # -> GG101 GG102
    assert out[1].tolist() == [2.0] * 3


def test_subclass_with_own_reduce_ex():
    x = make_labelled([1.0, 1.0], True, "mine")
    out = Parallel(n_jobs=2)(delayed(describe)(x) for _ in range(2))  # -> GG101
    assert out == [("Labelled", True, "mine")] * 2


def test_subclass_that_detaches_itself():
    x = torch.ones(3).as_subclass(SelfDetaching).requires_grad_()
    out = Parallel(n_jobs=2)(delayed(describe)(x) for _ in range(2))  # -> GG101?
    assert out == [("Tensor", False, None)] * 2


def test_result_with_own_reduce_ex():
    out = Parallel(n_jobs=2)(delayed(labelled)(k) for k in (1, 2))  # -> GG102
    assert [describe(t) for t in out] == [("Labelled", True, "k=1"), ("Labelled", True, "k=2")]


def test_reducer_in_the_dispatch_table():
    copyreg.pickle(torch.Tensor, to_plain)
    try:
        out = Parallel(n_jobs=2)(delayed(describe)(leaf()) for _ in range(2))  # -> GG101?
    finally:
        del copyreg.dispatch_table[torch.Tensor]
    assert out == [("Tensor", False, None)] * 2


def test_reducer_for_parameters():
    copyreg.pickle(nn.Parameter, to_plain)
    try:
        out = Parallel(n_jobs=2)(delayed(describe)(nn.Parameter(torch.ones(2))) for _ in range(2))
    finally:
        del copyreg.dispatch_table[nn.Parameter]
    assert out == [("Tensor", False, None)] * 2


def test_object_that_pickles_itself_to_bytes():
    item = Bytes(leaf())
    assert Parallel(n_jobs=2)(delayed(value_of)(item) for _ in range(2)) == [3.0, 3.0]  # -> GG101?


def test_state_that_is_changed_on_arrival():
    item = Waking(leaf())
    assert (
        Parallel(n_jobs=2)(delayed(awake)(item) for _ in range(2)) == [(True, 3.0)] * 2
    )  # -> GG101


def test_persistent_objects():
    items = [torch.float32, nn.Linear, number, None, ..., NotImplemented, torch.nn.functional.relu]
    out = Parallel(n_jobs=2)(delayed(isinstance)(item, type) for item in items)
    assert out == [False, True, False, False, False, False, False]


def test_forward_reducers():
    options = {"forward_reducers": {torch.Tensor: to_plain}}
    out = Parallel(n_jobs=2, backend="loky", **options)(
        delayed(describe)(leaf()) for _ in range(2)
    )  # -> GG101?
    assert out == [("Tensor", False, None)] * 2


def test_multiprocessing_reducer():
    copyreg.pickle(torch.Tensor, to_plain)
    try:
        out = Parallel(n_jobs=2, backend="multiprocessing")(
            delayed(describe)(leaf()) for _ in range(2)
        )  # -> GG101?
    finally:
        del copyreg.dispatch_table[torch.Tensor]
    assert out == [("Tensor", False, None)] * 2
