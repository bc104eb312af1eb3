"""What crosses to a joblib worker and back, for torch. Small tensors only: workers are forked."""

from __future__ import annotations

import sys
import warnings

import torch
from cases import attempt, case, main
from joblib import Parallel, delayed

BACKENDS = ("loky", "multiprocessing", "threading")


def each(task, *args):
    """What `task` gives in a worker of each backend."""
    return {
        backend: attempt(lambda b=backend: Parallel(2, backend=b)([delayed(task)(*args)])[0])
        for backend in BACKENDS
    }


def nature(tensor):
    tensor.seen_by_worker = True
    return {
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "history": tensor.grad_fn is not None,
        "grad": tensor.grad is not None,
        "parameter": isinstance(tensor, torch.nn.Parameter),
    }


@case
def leaf_argument():
    return each(nature, torch.ones(2, requires_grad=True))


@case
def the_same_object():
    found = {}
    for backend in BACKENDS:
        tensor = torch.ones(2, requires_grad=True)
        Parallel(2, backend=backend)([delayed(nature)(tensor)])
        found[backend] = hasattr(tensor, "seen_by_worker")
    return found


@case
def clone_argument():
    return each(nature, torch.ones(2, requires_grad=True).clone())


@case
def product_argument():
    return each(nature, torch.ones(2, requires_grad=True) * 2)


@case
def parameter_argument():
    return each(nature, torch.nn.Parameter(torch.ones(2)))


def module_nature(module):
    return [nature(parameter) for parameter in module.parameters()]


@case
def module_argument():
    return each(module_nature, torch.nn.Linear(1, 1))


def with_history():
    return torch.ones(2, requires_grad=True) * 2


@case
def result_with_history():
    return {
        backend: nature(Parallel(2, backend=backend)([delayed(with_history)()])[0])
        for backend in BACKENDS
    }


def filled(tensor):
    tensor.grad = torch.ones_like(tensor)
    return tensor


@case
def grad_of_tensor_argument():
    return each(nature, filled(torch.ones(2, requires_grad=True)))


@case
def grad_of_parameter_argument():
    return each(nature, filled(torch.nn.Parameter(torch.ones(2))))


@case
def grad_of_module_argument():
    module = torch.nn.Linear(1, 1)
    for parameter in module.parameters():
        filled(parameter)
    return each(module_nature, module)


def module_with_grad():
    module = torch.nn.Linear(1, 1)
    for parameter in module.parameters():
        filled(parameter)
    return module


def tensor_with_grad():
    return filled(torch.ones(2, requires_grad=True))


@case
def grad_of_results():
    found = {}
    for backend in BACKENDS:
        tensor, module = (
            Parallel(2, backend=backend)([delayed(task)()])[0]
            for task in (tensor_with_grad, module_with_grad)
        )
        found[backend] = [tensor.grad is not None, module.weight.grad is not None]
    return found


def state():
    return torch.nn.Linear(1, 1).state_dict()


@case
def state_dict_result():
    return {
        backend: [
            [type(value).__name__, value.requires_grad]
            for value in Parallel(2, backend=backend)([delayed(state)()])[0].values()
        ]
        for backend in BACKENDS
    }


def scale(tensor, factor):
    return tensor * factor


@case
def backward_through_results():
    found = {}
    for backend in BACKENDS:
        x = torch.ones(2, requires_grad=True)
        out = Parallel(2, backend=backend)(delayed(scale)(x.clone(), k) for k in (2.0, 4.0))
        (out[0] + out[1]).mean().backward()
        found[backend] = {
            "source": None if x.grad is None else x.grad.tolist(),
            "result": out[0].grad.tolist() if out[0].is_leaf else None,
        }
    return found


@case
def loss_made_in_both_places():
    found = {}
    for backend in BACKENDS:
        x = torch.ones(2, requires_grad=True)
        (part,) = Parallel(2, backend=backend)([delayed(scale)(x, 3.0)])
        (part.sum() + x.square().sum()).backward()
        found[backend] = x.grad.tolist()
    return found


held = torch.ones(2, requires_grad=True)


def reads_global():
    return nature(held)


@case
def global_of_main():
    before = each(reads_global)
    return {"seen": before, "marked": hasattr(held, "seen_by_worker")}


@case
def closure_and_lambda():
    tensor = torch.ones(2, requires_grad=True) * 2

    def closure():
        return [tensor.requires_grad, tensor.is_leaf]

    return {
        "closure": each(closure),
        "lambda": each(lambda: [tensor.requires_grad, tensor.is_leaf]),
    }


def backward(model, times):
    for _ in range(times):
        model(torch.ones(1, 1)).sum().backward()


@case
def backward_in_the_worker():
    found = {}
    for backend in BACKENDS:
        model = torch.nn.Linear(1, 1)
        workers = 8 if backend == "threading" else 2
        Parallel(workers, backend=backend)(delayed(backward)(model, 200) for _ in range(8))
        found[backend] = None if model.bias.grad is None else model.bias.grad.item()
    return found


@case
def bound_methods_that_succeed():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = model(torch.ones(1, 1)).sum()
    Parallel(2)([delayed(loss.backward)()])
    unfilled = model.weight.grad is None
    filled(model.weight)
    before = model.weight.detach().clone()
    Parallel(2)([delayed(optimizer.step)()])
    return [unfilled, torch.equal(before, model.weight)]


def hooks_in_the_worker(module):
    weight = module.weight
    of_module = [module._forward_hooks, module._backward_hooks]
    return {
        "of the parameter": [
            bool(weight._backward_hooks),
            bool(weight._post_accumulate_grad_hooks),
        ],
        "of the module": [bool(hooks) for hooks in of_module],
    }


@case
def hooks_of_a_module_and_its_parameter():
    module = torch.nn.Linear(1, 1)
    module.register_forward_hook(isinstance)
    module.register_full_backward_hook(print)
    module.weight.register_hook(abs)
    module.weight.register_post_accumulate_grad_hook(id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Some releases of torch say this of how they unpickle a tensor themselves.
        warnings.filterwarnings("ignore", "You are using `torch.load`", FutureWarning)
        return each(hooks_in_the_worker, module)


class Pair(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def shared(first, second):
    return first.layer is second.layer


def only_layer(model):
    return model.layer


@case
def layer_shared_by_two_models():
    layer = torch.nn.Linear(1, 1)
    models = [Pair(layer), Pair(layer)]
    in_one_task = each(shared, *models)
    layers = Parallel(2, batch_size=1)(delayed(only_layer)(model) for model in models)
    return {"in one task": in_one_task, "in two tasks": layers[0] is layers[1]}


def gradients(norm, x):
    return torch.autograd.grad(norm(x).square().sum(), list(norm.parameters()))


@case
def statistics_after_gradients_from_a_worker():
    found = {}
    for backend in BACKENDS:
        norm = torch.nn.BatchNorm1d(1)
        Parallel(2, backend=backend)([delayed(gradients)(norm, torch.tensor([[1.0], [3.0]]))])
        found[backend] = [norm.running_mean.item(), norm.num_batches_tracked.item()]
    return found


def versions(x):
    norm, own = torch.nn.BatchNorm1d(1), [torch.zeros(1), torch.ones(1)]
    instance = torch.nn.InstanceNorm1d(1, track_running_stats=True)
    torch.nn.functional.batch_norm(x, *own, training=True)
    counted = [norm.running_mean, norm.num_batches_tracked, own[0], instance.running_mean]
    before = [one._version for one in counted]
    norm(x)
    instance(x.reshape(1, 1, 2))
    torch.nn.functional.batch_norm(x, *own, training=True)
    return {
        "counts": [one._version - first for one, first in zip(counted, before, strict=True)],
        "changed": [bool(one.any()) for one in counted],
        "instance": instance.num_batches_tracked.item(),
    }


@case
def what_counts_a_change_of_statistics():
    return versions(torch.tensor([[1.0], [3.0]]))


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return model


@case
def old_optimizer_and_returned_model():
    found = {}
    for backend in BACKENDS:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        [model] = Parallel(2, backend=backend)([delayed(trained)(model)])
        before = model.weight.detach().clone()
        grown = []
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            grown.append(model.weight.grad.item())
        found[backend] = [torch.equal(before, model.weight), grown]
    return found


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # so that threads which could lose a gradient do
    main()
