"""What torch refuses on GPUs, and what the guard finds there; each returns what can be compared."""

from __future__ import annotations

import multiprocessing

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn

SITUATIONS = {}


def situation(function):
    """Register a situation."""
    SITUATIONS[function.__name__] = function
    return function


def refused(function):
    """Register a situation that ends in an error: its type and the beginning of its first line."""

    def told():
        try:
            return f"no error: {function()}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"

    SITUATIONS[function.__name__] = told
    return function


@refused
def sum_of_two_devices():
    return torch.ones(2) + torch.ones(2, device="cuda")


@refused
def product_of_two_devices():
    return torch.ones(2, 2) @ torch.ones(2, 2, device="cuda")


@refused
def layer_on_another_device():
    return nn.Linear(2, 2).cuda()(torch.ones(1, 2))


@refused
def convolution_on_another_device():
    return nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2))


@refused
def recurrent_layer_on_another_device():
    return nn.LSTM(2, 2).cuda()(torch.ones(1, 1, 2))


@refused
def embedding_of_indices_on_the_cpu():
    return nn.Embedding(3, 2).cuda()(torch.tensor([1]))


@refused
def loss_of_two_devices():
    return nn.functional.cross_entropy(torch.ones(2, 2, device="cuda"), torch.tensor([0, 1]))


@refused
def concatenation_of_two_devices():
    return torch.cat([torch.ones(1), torch.ones(1, device="cuda")])


@refused
def in_place_from_a_gpu():
    return torch.ones(2).add_(torch.ones(2, device="cuda"))


@refused
def index_on_a_gpu():
    return torch.ones(2)[torch.tensor([0], device="cuda")]


@refused
def numpy_of_a_gpu_tensor():
    return torch.ones(1, device="cuda").numpy()


@refused
def array_of_a_gpu_tensor():
    return np.asarray(torch.ones(1, device="cuda"))


@refused
def gpu_that_is_not_there():
    return torch.ones(1, device=f"cuda:{torch.cuda.device_count()}")


@refused
def choice_of_a_gpu_that_is_not_there():
    return torch.cuda.set_device(torch.cuda.device_count())


@refused
def properties_of_a_gpu_that_is_not_there():
    return torch.cuda.get_device_properties(torch.cuda.device_count())


@refused
def gradient_on_another_device():
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1, device="cuda")


@refused
def generator_of_the_cpu():
    return torch.rand(1, generator=torch.Generator(), device="cuda")


@refused
def pinned_gpu_memory():
    return torch.ones(1, device="cuda").pin_memory()


@refused
def recorded_time_without_timing():
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    end.record()
    return start.elapsed_time(end)


@situation
def numbers_go_anywhere():
    return str((torch.ones(1, device="cuda") + torch.tensor(1.0)).device)


@situation
def index_on_the_cpu():
    return str(torch.ones(2, device="cuda")[torch.tensor([0])].device)


def squares(k):
    return float(torch.arange(k, device="cuda").square().sum())


def total(x):
    return float(x.sum())


def made(k):
    return torch.ones(k, device="cuda")


@situation
def work_on_a_gpu_in_workers():
    return Parallel(2)(delayed(squares)(k) for k in (3, 4))


@situation
def tensor_for_workers():
    return Parallel(2)(delayed(total)(torch.ones(k, device="cuda")) for k in (1, 2))


@situation
def module_for_workers():
    model = nn.Linear(2, 1, bias=False).cuda()
    nn.init.ones_(model.weight)
    return Parallel(2)(delayed(total)(model.weight.detach()) for _ in range(2))


@situation
def tensor_from_workers():
    return [str(x.device) for x in Parallel(2)(delayed(made)(k) for k in (1, 2))]


@situation
def tensor_for_a_spawned_pool():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(total, [torch.ones(2, device="cuda")])


@situation
def work_on_a_gpu_in_threads():
    return Parallel(2, backend="threading")(delayed(squares)(k) for k in (3, 4))


@refused
def work_on_a_gpu_in_forked_workers():
    torch.zeros(1, device="cuda")
    return Parallel(2, backend="multiprocessing")(delayed(squares)(k) for k in (3, 4))


@situation
def work_on_the_cpu_in_forked_workers():
    torch.zeros(1, device="cuda")
    parallel = Parallel(2, backend="multiprocessing")
    return parallel(delayed(abs)(k) for k in (-3, 4))
