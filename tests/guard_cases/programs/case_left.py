"""Gradients that workers compute for copies, and the optimizer that steps in the parent.

GG106 is for a step without gradients that stayed in a worker: parameters without one, with zeros,
with what was there before the call, or with that of a penalty alone. Where gradients or parameters
came back in any form, or would be gone in one process, too, there is nothing to report.
"""

import copy
import ctypes
import functools
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import RawValue

import torch
from joblib import Parallel, delayed
from torch import nn
from torch.nn.utils import parameters_to_vector

X = torch.arange(24.0).reshape(2, 4, 3) / 24
FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def run(task, model):
    return Parallel(n_jobs=2)(delayed(task)(model, x) for x in X)


def backward(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss


# --- gradients stay behind -----------------------------------------------------------------


def hidden(model, x):
    h = model(x)
    h.square().mean().backward()
    return h.detach()


def test_some_parameters():
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    before = body.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        out = run(hidden, body)
        head(torch.cat(out)).sum().backward()
        optimizer.step()  # -> GG106:error
    assert torch.equal(body.weight, before)


def loss_of(model, x):
    return backward(model, x).item()


def test_zeros():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    backward(model, X[0])
    optimizer.zero_grad(set_to_none=False)
    run(loss_of, model)
    optimizer.step()  # -> GG106:error


def test_from_before_the_call():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    backward(model, X[0])
    optimizer.step()
    before = model.weight.grad.clone()
    run(loss_of, model)
    optimizer.step()  # -> GG106:error
    assert torch.equal(model.weight.grad, before)


def norm_of(model, x):
    model.zero_grad()
    backward(model, x)
    return float(sum(p.grad.norm() for p in model.parameters()))


def test_from_before_the_call_and_stepped_with():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    backward(model, X[0])
    for _ in range(2):  # the second step has no gradient of its own
        run(norm_of, model)
        optimizer.step()  # -> GG106:error


def test_penalty():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    run(loss_of, model)
    (0.01 * sum(p.square().sum() for p in model.parameters())).backward()
    optimizer.step()  # -> GG106:error


class Factor(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.factor


def test_penalty_of_one_number():
    model = Factor()
    optimizer = sgd(model)
    run(loss_of, model)
    (model.factor.abs() * 0.1).backward()
    optimizer.step()  # -> GG106:error


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x) * self.scale


def loss_tensor(model, x):
    return backward(model, x).detach()


def test_loss_of_the_shape_of_a_parameter():
    model = Scaled()
    optimizer = sgd(model)
    assert run(loss_tensor, model)[0].shape == model.scale.shape
    optimizer.step()  # -> GG106:error


def mean_scores(model, x):
    backward(model, x)
    return model(x).detach().mean(0)


def test_scores_of_the_shape_of_a_parameter():
    model = nn.Linear(3, 5)
    optimizer = sgd(model)
    assert run(mean_scores, model)[0].shape == model.bias.shape
    optimizer.step()  # -> GG106:error


class Weights(nn.Module):
    def __init__(self, *size):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(*size))

    def forward(self, x):
        return (x * self.weights).sum(-1)


def same_rows(model, x):
    backward(model, x)
    return x


def test_inputs_of_the_shape_of_a_parameter():
    model = Weights(4, 3)
    optimizer = sgd(model)
    assert run(same_rows, model)[0].shape == model.weights.shape
    optimizer.step()  # -> GG106:error


def signs(model, x):
    backward(model, x)
    return torch.tensor([[1.0, -1.0, 1.0]] * 4)


def test_scores_like_a_stack_of_gradients():
    model = Weights(3)
    optimizer = sgd(model)
    run(signs, model)
    optimizer.step()  # -> GG106:error


def norms(model, x):
    backward(model, x)
    found = [p.grad.norm().item() for p in model.parameters()]
    model.zero_grad()
    return found


def test_cleared_in_the_worker():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    run(norms, model)
    optimizer.step()  # -> GG106:error


def first_gradient(model, x):
    backward(model, x)
    return next(model.parameters()).grad


def test_some_gradients_returned():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    model.weight.grad = sum(run(first_gradient, model))
    optimizer.step()  # -> GG106:error


def test_loss_of_one_number():
    model = Factor()
    optimizer = sgd(model)
    run(loss_of, model)
    optimizer.step()  # -> GG106:error


def test_closure_of_an_optimizer():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        optimizer.zero_grad()
        return sum(run(loss_of, model))

    optimizer.step(closure)  # -> GG106:error


def start(context, task, *args):
    process = context.Process(target=task, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_forked_process():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    start(FORK, loss_of, model, X[0])
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_forked_process_and_penalty():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    start(FORK, loss_of, model, X[0])
    sum(p.abs().sum() for p in model.parameters()).backward()
    optimizer.step()  # -> GG106:error


def after(event, task, *args):
    event.wait()
    task(*args)


def trains_its_own(x):
    backward(nn.Linear(3, 1), x)


def test_forked_process_beside_another():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    first, second = FORK.Event(), FORK.Event()
    processes = [
        FORK.Process(target=after, args=(first, loss_of, model, X[0])),
        FORK.Process(target=after, args=(second, trains_its_own, X[1])),
    ]
    for process in processes:
        process.start()
    first.set()
    wait([processes[0].sentinel])
    second.set()
    for process in reversed(processes):
        process.join()
        assert process.exitcode == 0
    optimizer.step()  # -> GG106:error


def test_shared_parameters():
    model = nn.Linear(3, 1).share_memory()
    optimizer = sgd(model)
    start(FORK, loss_of, model, X[0])
    optimizer.step()  # -> GG106:error


def give_gradients(model, x):
    local = copy.deepcopy(model)
    loss = backward(local, x)
    for p, q in zip(model.parameters(), local.parameters(), strict=True):
        p.grad = q.grad
    return loss.item()


def test_gradients_of_a_local_copy():
    model = nn.Linear(3, 1).share_memory()
    optimizer = sgd(model)
    start(FORK, give_gradients, model, X[0])
    optimizer.step()  # -> GG106:error


def puts(task, queue, model, x):
    queue.put(task(model, x))


def test_losses_in_a_queue():
    model, queue = nn.Linear(3, 1), FORK.SimpleQueue()
    optimizer = sgd(model)
    start(FORK, puts, loss_of, queue, model, X[0])
    assert queue.get() > 0
    optimizer.step()  # -> GG106:error


def test_spawned_processes():
    model, shared = nn.Linear(3, 1), nn.Linear(3, 1).share_memory()
    for parameter in shared.parameters():
        parameter.grad = torch.zeros_like(parameter).share_memory_()
    optimizer, other = sgd(model), sgd(shared)
    start(SPAWN, two_losses, model, shared, X[0])
    optimizer.step()  # -> GG106:error
    other.step()  # -> GG106:error
    assert not shared.weight.grad.any()


def two_losses(first, second, x):
    loss_of(first, x)
    loss_of(second, x)


def counted(counter, lock, model, x):
    with lock:
        counter.value += 1
    backward(model, x)


def test_counter_beside_shared_parameters():
    model, counter = nn.Linear(3, 1).share_memory(), FORK.Value("i", 0)
    optimizer = sgd(model)
    start(FORK, counted, counter, FORK.Lock(), model, X[0])
    assert counter.value == 1
    optimizer.step()  # -> GG106:error


def meets(barrier, model, x):
    backward(model, x)
    barrier.wait()


def test_barrier_beside_shared_parameters():
    model, barrier = nn.Linear(3, 1).share_memory(), SPAWN.Barrier(2)
    optimizer = sgd(model)
    process = SPAWN.Process(target=meets, args=(barrier, model, X[0]))
    process.start()
    barrier.wait()
    process.join()
    optimizer.step()  # -> GG106:error


def noted(counter, losses, model, x):
    counter.add_(1)
    losses[0] = backward(model, x).detach()


def test_shared_tensors_too_small_for_gradients():
    model = nn.Linear(3, 1).share_memory()
    counter, losses = torch.zeros(()).share_memory_(), torch.zeros(2).share_memory_()
    optimizer = sgd(model)
    start(FORK, noted, counter, losses, model, X[0])
    assert counter == 1
    optimizer.step()  # -> GG106:error


def answers(connection, task, model):
    for x in map(torch.tensor, iter(connection.recv, None)):
        for answer in task(model, x):
            connection.send(answer)


def loss_alone(model, x):
    yield backward(model, x).item()
    model.zero_grad()


def test_process_that_answers_in_a_loop():
    model, (here, there) = nn.Linear(3, 1), FORK.Pipe()
    optimizer = sgd(model)
    process = FORK.Process(target=answers, args=(there, loss_alone, model))
    process.start()
    for x in X:
        here.send(x.tolist())
        here.recv()
        optimizer.step()  # -> GG106:error
    here.send(None)
    process.join()


HELD = {}


def hold(model):
    HELD["model"] = model


def held_loss(x):
    return loss_of(HELD["model"], x)


def test_global_of_a_forked_pool():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with FORK.Pool(1) as pool:
        for _ in range(2):
            optimizer.zero_grad()
            assert len(pool.map(held_loss, [*X, *X], chunksize=1)) == 4
            optimizer.step()  # -> GG106:error


def test_global_of_a_forked_executor():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with ProcessPoolExecutor(2, mp_context=FORK) as executor:
        assert sum(executor.map(held_loss, X)) > 0
    optimizer.step()  # -> GG106:error


def test_global_of_a_forked_process():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    start(FORK, held_loss, X[0])
    optimizer.step()  # -> GG106:error


def test_initializer_of_a_forked_pool():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    with FORK.Pool(2, hold, (model,)) as pool:
        assert sum(pool.map(held_loss, X)) > 0
    optimizer.step()  # -> GG106:error


def test_initializer_of_a_spawned_pool():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    with SPAWN.Pool(1, hold, (model,)) as pool:
        assert sum(pool.map(held_loss, X)) > 0
        optimizer.step()  # -> GG106:error


# --- gradients or parameters come back -----------------------------------------------------


def gradients(model, x):
    backward(model, x)
    return [p.grad for p in model.parameters()]


def scaled(model, x):
    return [g.numpy() * 0.1 for g in gradients(model, x)]


def clipped(model, x):
    return {"gradients": [g.clamp(-0.01, 0.01) for g in gradients(model, x)], "n": len(x)}


def halved(model, x):
    return [g.to(torch.bfloat16) for g in gradients(model, x)]


def summed(model, x):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for row in x:
        model.zero_grad()
        total = [t + g for t, g in zip(total, gradients(model, row), strict=True)]
    return total


def in_one_line(model, x):
    loss = backward(model, x)
    return torch.cat([loss.detach().reshape(1), *(p.grad.flatten() for p in model.parameters())])


def in_text(model, x):
    return json.dumps([g.tolist() for g in gradients(model, x)])


def in_bytes(model, x):
    return pickle.dumps(gradients(model, x))


def updates(model, x):
    old = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters())
    backward(model, x)
    optimizer.step()
    return [p.detach() - o for p, o in zip(model.parameters(), old, strict=True)]


def parameters(model, x):
    backward(model, x)
    sgd(model).step()
    return parameters_to_vector(model.parameters()).detach().numpy()


def state(model, x):
    backward(model, x)
    sgd(model).step()
    return model.state_dict()


FORMS = (
    scaled,
    clipped,
    halved,
    summed,
    in_one_line,
    in_text,
    in_bytes,
    updates,
    parameters,
    state,
)


def test_returned_in_some_form():
    for form in FORMS:
        model = nn.Linear(3, 1)
        optimizer = sgd(model)
        run(form, model)
        optimizer.step()


def gradient_of_the_factor(model, x):
    backward(model, x)
    return model.factor.grad.item()


def test_gradient_of_one_number():
    model = Factor()
    optimizer = sgd(model)
    run(gradient_of_the_factor, model)
    optimizer.step()


def norms_only(model, x):
    loss = model(x).square().mean()
    return [g.norm().item() for g in torch.autograd.grad(loss, list(model.parameters()))]


def test_gradient_by_autograd_grad():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    run(norms_only, model)
    optimizer.step()


# --- in one process it would be the same ---------------------------------------------------


def test_measured_between_backward_and_step():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    for metric in (norm_of, loss_of):
        for x in X:
            optimizer.zero_grad()
            backward(model, x)
            run(metric, model)
            start(FORK, metric, model, x)
            optimizer.step()


def test_measured_after_gradients_set_by_hand():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    for x in X:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) * x.mean()
        run(loss_of, model)
        optimizer.step()


def test_measured_while_gradients_accumulate():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    for x in X:
        backward(model, x)
        run(loss_of, model)
        optimizer.step()


def test_new_gradients_where_used_ones_lay():
    """Of so many, some take the memory that the same parameter's had before."""
    model = nn.Sequential(nn.Linear(3, 1), *(nn.Linear(1, 1) for _ in range(60)))
    optimizer = sgd(model)
    for x in [*X] * 8:
        optimizer.zero_grad()
        backward(model, x)
        Parallel(n_jobs=2)(delayed(norm_of)(model, x) for x in X)
        optimizer.step()


def test_gradients_that_are_zero():
    """What a model gets whose outputs are right."""
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    optimizer = sgd(model)
    optimizer.zero_grad()
    backward(model, X[0])
    run(norm_of, model)
    optimizer.step()


def test_cleared_here_since():
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    out = run(hidden, body)
    optimizer.zero_grad()
    head(torch.cat(out)).sum().backward()
    optimizer.step()


def test_cleared_here_by_hand():
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    out = run(hidden, body)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    head(torch.cat(out)).sum().backward()
    optimizer.step()


def test_zeroed_here_by_hand():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    backward(model, X[0])
    run(loss_of, model)
    for p in model.parameters():
        p.grad.zero_()
    optimizer.step()


def test_cleared_there_and_others_trained():
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    run(norms, body)
    head(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_own_data_here():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    run(loss_of, model)
    backward(model, X[0])
    optimizer.step()


def to_file(path, model, x):
    backward(model, x)
    sgd(model).step()
    torch.save(model.state_dict(), path)


def test_parameters_in_a_file(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    path = str(tmp_path / "state.pt")
    run(functools.partial(to_file, path), model)
    model.load_state_dict(torch.load(path, weights_only=True))
    optimizer.step()


def test_worker_steps_in_shared_memory():
    model = nn.Linear(3, 1).share_memory()
    optimizer, before = sgd(model), model.weight.detach().clone()
    start(FORK, state, model, X[0])
    optimizer.step()
    assert not torch.equal(model.weight, before)


def give_gradients_and_step(model, x):
    give_gradients(model, x)
    sgd(model).step()


def test_worker_steps_with_gradients_of_a_local_copy():
    model = nn.Linear(3, 1).share_memory()
    optimizer, before = sgd(model), model.weight.detach().clone()
    start(FORK, give_gradients_and_step, model, X[0])
    optimizer.step()
    assert not torch.equal(model.weight, before)


def zero_and_train_another(model, x):
    model.zero_grad(set_to_none=False)
    backward(nn.Linear(3, 1), x)


def test_worker_zeroes_what_it_does_not_train():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    backward(model, X[0])
    start(FORK, zero_and_train_another, model, X[0])
    optimizer.step()


def test_shared_gradients():
    model = nn.Linear(3, 1).share_memory()
    for p in model.parameters():
        p.grad = torch.zeros_like(p).share_memory_()
    optimizer, before = sgd(model), model.weight.detach().clone()
    start(FORK, loss_of, model, X[0])
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_gradients_in_a_queue():
    model, queue = nn.Linear(3, 1), FORK.SimpleQueue()
    optimizer = sgd(model)
    start(FORK, puts, scaled, queue, model, X[0])
    assert len(queue.get()) == 2
    optimizer.step()


def into(shared, model, x):
    backward(model, x)
    shared.copy_(torch.cat([p.grad.flatten() for p in model.parameters()]))


def test_parameters_in_shared_memory():
    model, shared = nn.Linear(3, 1), torch.zeros(4).share_memory_()
    optimizer = sgd(model)
    start(FORK, into, shared, model, X[0])
    assert shared.any()
    optimizer.step()


class Four(ctypes.Structure):
    _fields_ = (("values", ctypes.c_float * 4),)


def into_structure(room, model, x):
    backward(model, x)
    room.values[:] = torch.cat([p.grad.flatten() for p in model.parameters()]).tolist()


def test_gradients_in_a_shared_structure():
    model, room = nn.Linear(3, 1), RawValue(Four)
    optimizer = sgd(model)
    start(FORK, into_structure, room, model, X[0])
    assert any(room.values)
    optimizer.step()


def each_into(shared, model, x):
    backward(model, x)
    for room, parameter in zip(shared, model.parameters(), strict=True):
        room += parameter.grad


def test_gradients_in_several_shared_tensors():
    model = nn.Linear(3, 1)
    shared = [torch.zeros_like(p).share_memory_() for p in model.parameters()]
    optimizer = sgd(model)
    start(FORK, each_into, shared, model, X[0])
    assert all(room.any() for room in shared)
    optimizer.step()


def loss_and_gradients(model, x):
    yield backward(model, x).item()
    yield [parameter.grad.tolist() for parameter in model.parameters()]
    model.zero_grad()


def test_process_that_answers_with_gradients():
    model, (here, there) = nn.Linear(3, 1), FORK.Pipe()
    optimizer, before = sgd(model), model.weight.detach().clone()
    process = FORK.Process(target=answers, args=(there, loss_and_gradients, model))
    process.start()
    for x in X:
        here.send(x.tolist())
        assert here.recv() > 0
        for parameter, gradient in zip(model.parameters(), here.recv(), strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    here.send(None)
    process.join()
    assert not torch.equal(model.weight, before)


def saliency(model, x):
    x = x.clone().requires_grad_()
    backward(model, x)
    return x.grad.abs()


def saliency_in_place(model, x):
    backward(model, x.requires_grad_())
    return x.grad


def test_inputs_explained_between_backward_and_step():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    for explain in (saliency, saliency_in_place):
        optimizer.zero_grad()
        backward(model, X[0])
        assert all(found.any() for found in run(explain, model))
        optimizer.step()


def held_gradients(x):
    return gradients(HELD["model"], x)


def test_gradients_of_a_global_returned():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with FORK.Pool(2) as pool:
        assert len(pool.map(held_gradients, X)) == 2
    optimizer.step()


def test_shared_gradients_of_a_global():
    model = nn.Linear(3, 1).share_memory()
    for p in model.parameters():
        p.grad = torch.zeros_like(p).share_memory_()
    hold(model)
    optimizer, before = sgd(model), model.weight.detach().clone()
    with FORK.Pool(1) as pool:
        pool.map(held_loss, X)
    optimizer.step()
    assert not torch.equal(model.weight, before)


def own_copy_loss(x):
    return loss_of(copy.deepcopy(HELD["model"]), x)


def test_copy_of_a_global_trained():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with FORK.Pool(2) as pool:
        assert sum(pool.map(own_copy_loss, X)) > 0
    optimizer.step()


def test_global_cleared_here_since():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with FORK.Pool(2) as pool:
        pool.map(held_loss, X)
    optimizer.zero_grad()
    optimizer.step()


def test_global_with_own_data_here():
    hold(nn.Linear(3, 1))
    optimizer = sgd(HELD["model"])
    with FORK.Pool(2) as pool:
        pool.map(held_loss, X)
    backward(HELD["model"], X[0])
    optimizer.step()


def held_state(x):
    return state(HELD["model"], x)


def test_parameters_from_an_initializer_returned():
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    with SPAWN.Pool(1, hold, (model,)) as pool:
        model.load_state_dict(pool.map(held_state, X[:1])[0])
    optimizer.step()
