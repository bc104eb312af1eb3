"""Steps that a program makes itself from `.grad`, whose gradients stayed in a worker."""

import multiprocessing
import os
import pickle
import tempfile
import warnings

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from torch import nn
from torch.func import functional_call, grad

torch.manual_seed(0)
ROWS = torch.arange(12.0).reshape(4, 3) / 10
TARGETS = ROWS.sum(1, keepdim=True)

EXPECT = {
    "test_fused_by_a_function": {"GG106"},
    "test_adam": {"GG106"},
    "test_collected": {"GG106"},
}


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model):
    return (model(ROWS) - TARGETS).pow(2).mean()


def backward(model):
    loss = loss_of(model)
    loss.backward()
    return loss.item()


def norm(model):
    backward(model)
    return float(sum(p.grad.norm() for p in model.parameters()))


def gradients(model):
    backward(model)
    return [p.grad for p in model.parameters()]


def run(task, model):
    return Parallel(n_jobs=2)(delayed(task)(model) for _ in range(2))


def test_guarded_by_none():
    model = net()
    for _ in range(2):
        run(backward, model)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:  # -> GG106:error
                    p -= 0.1 * p.grad


def test_skipped_by_none():
    model = net()
    run(backward, model)
    for p in model.parameters():
        if p.grad is None:  # -> GG106:error
            continue
        p.data.add_(p.grad, alpha=-0.1)


def test_fused():
    model = net()
    run(backward, model)
    chosen = [p for p in model.parameters() if p.grad is not None]  # -> GG106:error
    if chosen:
        with torch.no_grad():
            torch._foreach_add_(chosen, [p.grad for p in chosen], alpha=-0.1)


@torch.no_grad()
def fused(parameters, rate):
    found, chosen = [], []
    for p in parameters:
        if p.grad is not None:  # -> GG106:error
            found.append(p.grad)
            chosen.append(p)
    if found:
        torch._foreach_add_(chosen, torch._foreach_mul(found, -rate))


def test_fused_by_a_function():
    model = net()
    run(backward, model)
    fused(list(model.parameters()), 0.1)


class Adam:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self):
        for p, first, second in zip(self.parameters, self.first, self.second, strict=True):
            g = p.grad  # -> GG106:error
            if g is None:
                continue
            first.mul_(0.9).add_(g, alpha=0.1)
            second.mul_(0.99).addcmul_(g, g, value=0.01)
            p -= 0.01 * first / (second.sqrt() + 1e-8)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def test_adam():
    model = net()
    optimizer = Adam(model.parameters())
    optimizer.zero_grad()
    run(backward, model)
    optimizer.step()


def test_clipped():
    model = net()
    run(backward, model)
    with torch.no_grad():
        total = sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None)
        factor = min(1.0, 1.0 / (float(total) ** 0.5 + 1e-6))
        for p in model.parameters():
            if p.grad is not None:  # -> GG106:error
                p.grad.mul_(factor)
                p.sub_(0.1 * p.grad)
                p.grad = None


def test_zeros():
    model = net()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    run(backward, model)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad  # -> GG106:error
            p.grad.zero_()


def update(parameter, gradient, rate):
    parameter.data.sub_(rate * gradient)


def test_helper():
    model = net()
    run(backward, model)
    for p in model.parameters():
        if p.grad is not None:  # -> GG106:error
            update(p, p.grad, rate=0.1)


def collected(model):
    return [(p, p.grad) for p in model.parameters() if p.grad is not None]  # -> GG106:error


def test_collected():
    model = net()
    run(backward, model)
    with torch.no_grad():
        for p, g in collected(model):
            p -= 0.1 * g


def test_replaced_data():
    model = net()
    run(backward, model)
    for p in model.parameters():
        g = p.grad if p.grad is not None else torch.zeros_like(p)  # -> GG106:error
        p.data = p.data - 0.1 * g


def test_refused():
    model = net()
    run(backward, model)
    with torch.no_grad(), pytest.raises(TypeError, match="NoneType"):
        model[0].weight -= 0.1 * model[0].weight.grad  # -> GG106:error


def test_loaded():
    model = net()
    run(backward, model)
    state = {
        name: p.detach() if p.grad is None else p.detach() - 0.1 * p.grad  # -> GG106:error
        for name, p in model.named_parameters()
    }
    model.load_state_dict(state)


def test_walrus():
    model = net()
    run(backward, model)
    with torch.no_grad():
        for p in model.parameters():
            if (g := p.grad) is not None:  # -> GG106:error
                p.add_(g, alpha=-0.1)


def encoded(encoder):
    z = encoder(ROWS)
    (z - TARGETS).pow(2).mean().backward()
    return z.detach()


def test_part_of_the_parameters():
    encoder, head = net(), nn.Linear(1, 1)
    out = run(encoded, encoder)
    (head(out[0]) - TARGETS).pow(2).mean().backward()
    with torch.no_grad():
        for p in [*encoder.parameters(), *head.parameters()]:
            if p.grad is not None:  # -> GG106:error
                p -= 0.1 * p.grad


def put_loss(model, queue):
    queue.put(backward(model))


def in_a_process(model):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put_loss, args=(model, queue))
    process.start()
    assert queue.get() > 0
    process.join()


def test_process():
    model = net()
    in_a_process(model)
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:  # -> GG106:error
                p.add_(p.grad, alpha=-0.1)


def test_shared():
    model = net().share_memory()
    in_a_process(model)
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:  # -> GG106:error
                p.copy_(p - 0.1 * p.grad)


def test_fork():
    model = net()
    child = os.fork()
    if child == 0:
        backward(model)
        os._exit(0)
    os.waitpid(child, 0)
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:  # -> GG106:error
                p.add_(p.grad, alpha=-0.1)


def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    optimizer.step()


def evaluated(model):
    model.eval()
    with torch.no_grad():
        return model(ROWS)


def test_trained_in_a_fork():
    model = net()
    read, write = os.pipe()
    child = os.fork()  # -> GG114:warning
    if child == 0:
        fit(model)
        os.write(write, b"done")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 4) == b"done"
    evaluated(model)


KIND = np.dtype


def test_trained_in_a_fork_beside_a_type_of_numpy():
    model = net()
    child = os.fork()  # -> GG114:warning
    if child == 0:
        fit(model)
        os._exit(KIND("f4").itemsize)
    os.waitpid(child, 0)
    evaluated(model)


def test_statistics_of_a_fork():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    child = os.fork()  # -> GG111:warning
    if child == 0:
        backward(model)
        os._exit(0)
    os.waitpid(child, 0)
    evaluated(model)


def test_fork_that_writes_what_it_trained():
    model = net()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        fit(model)
        for p in model.parameters():
            os.write(write, p.detach().numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert len(os.read(read, 1_000)) == 84
    evaluated(model)


def test_fork_that_saves():
    model = net()
    path = os.path.join(tempfile.mkdtemp(), "model.pt")
    child = os.fork()
    if child == 0:
        fit(model)
        torch.save(model, path)
        os._exit(0)
    os.waitpid(child, 0)
    evaluated(model)


# -- no step that lacks anything -------------------------------------------------------------------


def step(model):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None


def test_gradients_returned():
    model = net()
    for p, *parts in zip(model.parameters(), *run(gradients, model), strict=True):
        p.grad = sum(parts)
    step(model)


def test_only_looked_at():
    model = net()
    run(norm, model)
    assert model[0].weight.grad is None
    assert all(p.grad is None for p in model.parameters())
    print(model[0].weight.grad, [p.grad for p in model.parameters()])
    if model[0].weight.grad is None:
        print("no gradient")
    before = [p.grad for p in model.parameters()]
    loss_of(model).backward()
    assert len(before) == 4
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad


def test_metric_after_backward():
    model = net()
    loss_of(model).backward()
    run(norm, model)
    step(model)


def test_metric_before_backward():
    model = net()
    for _ in range(2):
        run(norm, model)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()
        loss_of(model).backward()
        step(model)


def test_returned_gradients_of_grad():
    model = net()
    run(norm, model)
    found = torch.autograd.grad(loss_of(model), list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), found, strict=True):
            p -= 0.1 * g
    print(model[0].weight.grad)


def test_functional_call():
    model = net()
    run(norm, model)
    parameters = dict(model.named_parameters())
    values = {name: p.detach() for name, p in parameters.items()}
    found = grad(lambda own: (functional_call(model, own, (ROWS,)) - TARGETS).pow(2).mean())(values)
    with torch.no_grad():
        for name, p in parameters.items():
            p -= 0.1 * found[name]


def test_moving_average():
    model, average = net(), net()
    run(norm, model)
    for p in model.parameters():
        if p.grad is not None:
            print("has a gradient")
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters(), strict=True):
            kept.mul_(0.9).add_(p, alpha=0.1)


def trained(model):
    fit(model)
    return model.state_dict()


def test_logged_norm():
    model = net()
    first, second = run(trained, model)
    model.load_state_dict({name: (first[name] + second[name]) / 2 for name in first})
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm().item()
    assert total == 0


def test_saved_and_restored():
    model = net()
    run(norm, model)
    saved = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    pickle.dumps(saved)
    loss_of(model).backward()
    for p, g in zip(model.parameters(), saved, strict=True):
        p.grad = g
    assert model[0].weight.grad is None


def test_process_with_metric():
    model = net()
    in_a_process(model)
    loss_of(model).backward()
    step(model)


class Own(nn.Parameter):
    pass


def test_as_torch_has_it():
    model = net()
    run(norm, model)
    assert nn.Parameter.grad is torch.Tensor.grad
    own = Own(torch.ones(3))
    (own * 2).sum().backward()
    assert own.grad.tolist() == [2.0] * 3
    del own.grad
    assert own.grad is None
    other = torch.ones(3, requires_grad=True) * 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert other.grad is None
    assert [os.path.basename(one.filename) for one in seen] == ["case_by_hand.py"]
