"""Errors at the boundary that the program gets as they are: of pickling, of queues, of autograd.

What the guard adds to some of them is no finding (`tests/runtime/test_error_notes.py`). That
autograd refuses to run in a forked worker is one. A PyTorch built with CUDA raises that error; here
the backward pass of a function raises it, with the same class and text.
"""

import multiprocessing
import pickle
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.multiprocessing
from joblib import Parallel, delayed
from torch import nn
from torch.utils.data import DataLoader, Dataset

MAY = {}
DETAILS = {
    "test_autograd_refuses": {"GG303": {"function": "trained", "framework": "torch"}},
}
FORK = multiprocessing.get_context("fork")
REFUSED = (
    "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
    "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
)


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values * 1

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError(REFUSED)


def trained(_):
    values = torch.ones(2, requires_grad=True)
    Refusing.apply(values).sum().backward()


def test_autograd_refuses():
    # One task: a pool that ends while another worker writes its result can hang by itself.
    with pytest.raises(RuntimeError, match="Unable to handle"):
        Parallel(2, backend="multiprocessing")([delayed(trained)(0)])  # -> GG303


def test_autograd_refuses_in_a_pool():
    with FORK.Pool(1) as pool, pytest.raises(RuntimeError, match="Unable to handle"):
        pool.map(trained, range(1))  # -> GG303:error


def test_autograd_refuses_in_an_executor():
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        future = executor.submit(trained, 0)  # -> GG303:error
        with pytest.raises(RuntimeError, match="Unable to handle"):
            future.result()


def explained(_):
    try:
        trained(_)
    except RuntimeError as error:
        raise ValueError("training failed") from error


def test_autograd_refuses_behind_another_error():
    with FORK.Pool(1) as pool, pytest.raises(ValueError, match="training failed"):
        pool.map(explained, range(1))  # -> GG303


NO_FORKS = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="Python has that since 3.14: nothing forks unasked"
)


@NO_FORKS
def test_autograd_refuses_in_a_process():
    process = multiprocessing.Process(target=trained, args=(0,))
    process.start()  # -> GG303:error
    process.join()
    assert process.exitcode == 1


def test_autograd_refuses_in_a_forked_process():
    process = FORK.Process(target=trained, args=(0,), daemon=True)
    process.start()  # -> GG303:error
    process.join()
    assert process.exitcode == 1


def test_such_an_error_in_a_spawned_process():
    process = multiprocessing.get_context("spawn").Process(target=trained, args=(0,))
    process.start()
    process.join()
    assert process.exitcode == 1


class Samples(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, k):
        trained(k)
        return k


@NO_FORKS
def test_autograd_refuses_in_a_loader():
    loader = DataLoader(Samples(), batch_size=1, num_workers=1)
    with pytest.raises(RuntimeError, match="Unable to handle"):
        list(loader)  # -> GG303:error


def test_such_an_error_in_a_spawned_loader():
    loader = DataLoader(Samples(), 1, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(RuntimeError, match="Unable to handle"):
        list(loader)


def test_such_an_error_where_nothing_was_forked():
    with pytest.raises(RuntimeError, match="Unable to handle"):
        Parallel(2)(delayed(trained)(k) for k in range(2))


def test_such_an_error_in_threads():
    with pytest.raises(RuntimeError, match="Unable to handle"):
        Parallel(2, backend="threading")(delayed(trained)(k) for k in range(2))


def careful(_):
    try:
        trained(_)
    except RuntimeError:
        return "without"


def test_task_that_takes_the_error():
    with FORK.Pool(1) as pool:
        assert pool.map(careful, range(1)) == ["without"]


def twice(_):
    loss = torch.ones(2, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


def test_another_error_of_a_backward():
    with FORK.Pool(1) as pool, pytest.raises(RuntimeError, match="a second time"):
        pool.map(twice, range(1))


def total(values):
    return float(values.sum())


def test_graph_to_a_pool():
    values = torch.ones(2, requires_grad=True) * 2
    with FORK.Pool(1) as pool, pytest.raises(RuntimeError, match="Cowardly refusing"):
        pool.map(total, [values])


def test_graph_to_an_executor():
    values = torch.ones(2, requires_grad=True) * 2
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        future = executor.submit(total, values)
        with pytest.raises(RuntimeError, match="Cowardly refusing"):
            future.result()


def test_graph_to_a_queue():
    queue = torch.multiprocessing.SimpleQueue()
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        queue.put({"values": torch.ones(2, requires_grad=True) * 2})


def sender(queue):
    queue.put(torch.ones(2))


def test_sender_that_has_ended():
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=sender, args=(queue,))
    process.start()
    process.join()
    with pytest.raises(OSError, match=r"No such file|refused"):
        queue.get()


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 1)
        self.log = {"lock": threading.Lock()}


def test_module_with_a_lock():
    with pytest.raises(pickle.PicklingError, match="Could not pickle the task"):
        Parallel(2)(delayed(total)(Logged()) for _ in range(2))
    with pytest.raises(TypeError, match="cannot pickle"):
        Parallel(2, backend="multiprocessing")(delayed(total)(Logged()) for _ in range(2))


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = lambda values: values


def test_module_with_a_local_function():
    with FORK.Pool(1) as pool, pytest.raises((AttributeError, pickle.PicklingError)):
        pool.map(total, [Local()])


class Unready:
    def __reduce__(self):
        raise TypeError("not ready: cannot pickle it")


def test_own_error_of_pickling():
    with FORK.Pool(1) as pool, pytest.raises(TypeError, match="not ready"):
        pool.map(total, [Unready()])


def test_generator():
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        future = executor.submit(total, (k for k in range(2)))
        with pytest.raises(TypeError, match="generator"):
            future.result()
