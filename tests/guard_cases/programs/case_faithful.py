"""Guarded programs compute what they computed before: identity, sharing, warnings, memory.

Each test asserts something that holds without the guard and that a careless one would break.
"""

import copy
import gc
import io
import os
import pickle
import sys
import threading
import warnings
import weakref

import joblib
import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_backward_of_a_subclass": {"GG102", "GG103"},
}


class Counting:
    """Counts how often it is pickled."""

    pickled = 0

    def __init__(self, weight):
        self.weight = weight

    def __getstate__(self):
        Counting.pickled += 1
        return {"weight": self.weight}


class Ordered:
    log = []  # noqa: RUF012

    def __init__(self, name, weight=None):
        self.name = name
        self.weight = weight

    def __getstate__(self):
        Ordered.log.append(self.name)
        return {"name": self.name, "weight": self.weight}


class Logged(torch.Tensor):
    log = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.log.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    def backward(self, *args, **kwargs):
        Tagged.calls += 1
        return super().backward(*args, **kwargs)  # -> GG103:warning?

    calls = 0


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k):
    return x * k


def live(k):
    return torch.ones(3, requires_grad=True) * k


def is_same(a, b):
    return a is b


def number(x):
    return float(x.detach().sum())


def twice(k):
    y = live(k)
    return y, [y]


def with_attribute(k):
    y = live(k)
    y.label = f"k={k}"
    return y


def tagged(k):
    return torch.ones(3).as_subclass(Tagged).requires_grad_() * k


def kind_of(array, x):
    return type(array).__name__, number(x)


def weight_of(item):
    return number(item.weight)


def names_of(items):
    return [item.name for item in items]


# --- what crosses, and how often -----------------------------------------------------------


def test_one_tensor_twice_in_a_task():
    x = leaf()
    assert Parallel(n_jobs=2)(delayed(is_same)(x, x) for _ in range(2)) == [True, True]  # -> GG101


def test_one_result_twice():
    out = Parallel(n_jobs=2)(delayed(twice)(k) for k in (1, 2))  # -> GG102
    assert [one[0] is one[1][0] for one in out] == [True, True]


def test_attributes_of_results():
    out = Parallel(n_jobs=2)(delayed(with_attribute)(k) for k in (1, 2))  # -> GG102
    assert [vars(t) for t in out] == [{"label": "k=1"}, {"label": "k=2"}]


def test_results_are_plain_tensors():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    for t in out:
        assert type(t) is torch.Tensor
        assert vars(t) == {}
        assert (t.is_leaf, t.requires_grad, t.grad, t.grad_fn) == (True, True, None, None)
    assert type(out) is list


def test_no_warnings():
    x = leaf()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
        sum(out).sum().backward()  # -> GG103:error
    assert [w for w in seen if "Parallel" not in str(w.message)] == []
    assert x.grad is None


def test_results_can_be_pickled_quietly():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(pickle.dumps(out[0]))
        torch.save(out[1], io.BytesIO())
        shipped = Parallel(n_jobs=2)(delayed(number)(t) for t in out)  # -> GG101
    assert again.tolist() == [1.0] * 3
    assert shipped == [3.0, 6.0]


def test_results_can_be_changed_in_place():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    with torch.no_grad():
        out[0].add_(1)
    assert out[0].detach_().tolist() == [2.0] * 3
    assert not out[0].requires_grad


def test_results_as_optimizer_input():
    """Results may be starting points that the parent goes on to improve, by their gradients."""
    starts = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    optimizer = torch.optim.SGD(starts, lr=0.5)
    sum(t.pow(2).sum() for t in starts).backward()
    optimizer.step()
    assert [t.tolist() for t in starts] == [[0.0] * 3, [0.0] * 3]


def test_results_are_not_kept_alive():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    refs = [weakref.ref(t) for t in out]
    del out
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_sources_are_not_kept_alive():
    x = leaf()
    y = x * 2
    refs = [weakref.ref(x), weakref.ref(y)]
    out = Parallel(n_jobs=2)(delayed(times)(y, k) for k in (1, 2))  # -> GG101 GG102
    Parallel(n_jobs=2)(delayed(abs)(k) for k in range(40))
    del x, y
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert len(out) == 2


def test_results_after_backward_are_not_kept_alive():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    refs = [weakref.ref(t) for t in out]
    del out
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_pickled_once():
    before = Counting.pickled
    item = Counting(leaf())
    out = Parallel(n_jobs=2, batch_size=1)(delayed(weight_of)(item) for _ in range(4))  # -> GG101
    assert out == [3.0] * 4
    assert Counting.pickled - before == 4


def test_getstate_in_order():
    Ordered.log.clear()
    items = [Ordered("a"), Ordered("b", leaf()), Ordered("c")]
    out = Parallel(n_jobs=2)([delayed(names_of)(items)])  # -> GG101
    assert out == [["a", "b", "c"]]
    assert Ordered.log == ["a", "b", "c"]


def test_torch_function_is_not_called_more():
    x = torch.ones(3).as_subclass(Logged).requires_grad_()
    Logged.log.clear()
    pickle.dumps(x)
    alone = len(Logged.log)
    Logged.log.clear()
    Parallel(n_jobs=2)([delayed(is_same)(x, x)])  # -> GG101
    assert len(Logged.log) == alone


def test_callable_is_called_once():
    x = leaf()
    calls = []

    def tasks():
        for k in (1, 2):
            calls.append(k)
            yield delayed(times)(x, k)

    out = Parallel(n_jobs=2)(tasks())  # -> GG101 GG102
    assert calls == [1, 2]
    assert len(out) == 2


def test_large_arrays_beside_a_tensor():
    big = np.ones(300_000)
    out = Parallel(n_jobs=2)(delayed(kind_of)(big, x) for x in (leaf(), torch.ones(3)))  # -> GG101
    assert out == [("memmap", 3.0)] * 2


def test_no_threads_left():
    Parallel(n_jobs=2)(delayed(abs)(k) for k in range(2))
    before = {thread.name for thread in threading.enumerate()}
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert {thread.name for thread in threading.enumerate()} <= before


def test_backward_returns_as_before():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    assert out[0].sum().backward() is None  # -> GG103:warning
    grads = torch.autograd.grad((out[1] ** 2).sum(), [out[1]])
    assert type(grads) is tuple
    assert grads[0].tolist() == [4.0] * 3


def test_backward_of_a_subclass():
    out = Parallel(n_jobs=2)(delayed(tagged)(k) for k in (1, 2))  # -> GG102
    before = Tagged.calls
    (out[0] * 2).sum().backward()  # -> GG103:warning?
    assert Tagged.calls - before == 1
    assert type(out[0]) is Tagged


def test_grad_mode_is_kept():
    x = leaf()
    with torch.no_grad():
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102 GG301
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert all(t.requires_grad for t in out)


def test_random_numbers_are_the_same():
    torch.manual_seed(3)
    wanted = torch.rand(2).tolist()
    torch.manual_seed(3)
    first = torch.rand(1).tolist()
    Parallel(n_jobs=2)(delayed(number)(leaf()) for _ in range(2))  # -> GG101
    assert first + torch.rand(1).tolist() == wanted


def test_arguments_of_backward():
    (loss, other) = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    loss.backward(torch.ones(3), retain_graph=True, create_graph=False)  # -> GG103:warning
    torch.autograd.backward(
        tensors=[other], grad_tensors=[torch.full((3,), 2.0)]
    )  # -> GG103:warning
    assert loss.grad.tolist() == [1.0] * 3
    assert other.grad.tolist() == [2.0] * 3


# --- nothing to report ---------------------------------------------------------------------


def test_hash_and_dump_are_no_shipping(tmp_path):
    x = leaf()
    assert joblib.hash(x) == joblib.hash(x)
    joblib.dump({"x": x}, tmp_path / "x.joblib")
    assert joblib.load(tmp_path / "x.joblib")["x"].requires_grad
    torch.save(x, tmp_path / "x.pt")
    assert pickle.loads(pickle.dumps(x)).requires_grad


def test_pickling_in_another_thread():
    """The program pickles a tensor for itself while a parallel call is under way."""
    x = leaf()
    stop = threading.Event()
    copies = []

    def keep_pickling():
        while not stop.is_set():
            copies.append(pickle.loads(pickle.dumps(x)).requires_grad)

    thread = threading.Thread(target=keep_pickling)
    thread.start()
    try:
        assert Parallel(n_jobs=2)(delayed(abs)(-k) for k in range(30)) == list(range(30))
    finally:
        stop.set()
        thread.join()
    assert all(copies)


def test_memory_beside_it(tmp_path):
    memory = joblib.Memory(tmp_path, verbose=0)

    @memory.cache
    def total(x, k):
        return float(x.sum()) * k

    x = leaf()
    values = [total(x.detach(), 2), total(x.detach(), 2)]
    values += Parallel(n_jobs=2)(delayed(abs)(-k) for k in (6, 6))
    assert values == [6.0] * 4


def test_copies_are_no_shipping():
    x = leaf()
    model = nn.Linear(3, 1)
    copies = [copy.deepcopy(x), copy.copy(x), copy.deepcopy(model).weight]
    assert Parallel(n_jobs=2)(delayed(abs)(-k) for k in (1, 2)) == [1, 2]
    sum(t.sum() for t in copies).backward()
    assert copies[0].grad is not None


def test_functions_of_the_library():
    out = Parallel(n_jobs=2)(delayed(os.path.join)("a", str(k)) for k in (1, 2))
    assert out == ["a/1", "a/2"]


def test_patched_backward_of_the_user():
    calls = []
    original = torch.Tensor.backward

    def counting(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    torch.Tensor.backward = counting
    try:
        x = leaf()
        (x * 2).sum().backward()
    finally:
        torch.Tensor.backward = original
    assert calls == [1]
    assert x.grad.tolist() == [2.0] * 3


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    model = nn.Linear(3, 1)
    checkpoint(model, torch.ones(2, 3, requires_grad=True), use_reentrant=True).sum().backward()
    assert model.weight.grad.tolist() == [[2.0] * 3]


def test_double_backward_without_workers():
    x = leaf()
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.sum().backward()
    assert x.grad.tolist() == [6.0] * 3
    jacobian = torch.autograd.functional.jacobian(lambda t: t**2, torch.ones(2))
    assert jacobian.tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_autograd_function():
    x = leaf()
    Doubling.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_names_of_joblib():
    assert Parallel.__name__ == "Parallel"
    assert Parallel.__module__ == "joblib.parallel"
    assert sys.modules["joblib.parallel"].Parallel is Parallel
    assert isinstance(Parallel(n_jobs=2), joblib.Parallel)
