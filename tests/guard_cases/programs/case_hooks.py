"""Hooks that hear of gradients, on tensors that go to workers."""

import torch
from joblib import Parallel, delayed
from torch import nn

MAY = {}
DETAILS = {
    "test_hook_of_a_parameter": {"GG113": {"object": "args[0].weight", "function": "gradient"}}
}


def gradient(model):
    model(torch.ones(1, 2)).sum().backward()
    return model.weight.grad.tolist()


def halved(grad):
    return grad / 2


def test_hook_of_a_parameter():
    model = nn.Linear(2, 1)
    model.weight.register_hook(halved)
    found = Parallel(2)(delayed(gradient)(model) for _ in range(2))  # -> GG113
    assert found == [[[1.0, 1.0]]] * 2


def test_hook_after_accumulation():
    model = nn.Linear(2, 1)
    model.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    Parallel(2)(delayed(gradient)(model) for _ in range(2))  # -> GG113


def total(tensor):
    return float(tensor.sum())


def test_hook_of_a_tensor():
    tensor = torch.ones(3, requires_grad=True)
    tensor.register_hook(halved)
    Parallel(2)(delayed(total)(tensor) for _ in range(2))  # -> GG101 GG113


def test_captured_module():
    model = nn.Linear(2, 1)
    model.weight.register_hook(halved)
    Parallel(2)(delayed(lambda: gradient(model))() for _ in range(2))  # -> GG113


def test_hook_of_a_module():
    model = nn.Linear(2, 1)
    model.register_full_backward_hook(print)
    model.register_forward_hook(isinstance)
    Parallel(2)(delayed(total)(model.weight.detach()) for _ in range(2))
    Parallel(2)(delayed(repr)(model) for _ in range(2))


@torch.utils.hooks.unserializable_hook
def of_this_process(grad):
    return grad


def test_hook_that_is_meant_to_stay():
    model = nn.Linear(2, 1)
    model.weight.register_hook(of_this_process)
    Parallel(2)(delayed(gradient)(model) for _ in range(2))


def test_removed_hook():
    model = nn.Linear(2, 1)
    model.weight.register_hook(halved).remove()
    Parallel(2)(delayed(gradient)(model) for _ in range(2))


def hooked(model):
    model.weight.register_hook(halved)
    return gradient(model)


def test_hook_made_in_the_worker():
    found = Parallel(2)(delayed(hooked)(nn.Linear(2, 1)) for _ in range(2))
    assert found == [[[0.5, 0.5]]] * 2


def test_threads():
    model = nn.Linear(2, 1)
    model.weight.register_hook(halved)
    Parallel(2, backend="threading")(delayed(gradient)(model) for _ in range(1))
    assert model.weight.grad.tolist() == [[0.5, 0.5]]


def test_hook_of_another_module():
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    other.weight.register_hook(halved)
    Parallel(2)(delayed(gradient)(model) for _ in range(2))
