"""What the parent does with results that had a graph in their worker.

GG103 is for the backward that gives a gradient to such a result: it stops there. It is an error
where the call was given a tensor that requires grad, a warning where the worker's graph had only
leaves of its own. A result that is never reached by a backward is no GG103.
"""

import copy
import dataclasses
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from joblib import Parallel, delayed
from torch import nn

EXPECT = {
    "test_features_of_a_fixed_encoder": {"GG102", "GG103"},
    "test_features_of_an_encoder_that_is_trained": {"GG102", "GG103"},
    "test_features_of_an_encoder_that_is_trained_later": {"GG102", "GG103"},
    "test_backward_in_a_helper": {"GG101", "GG102", "GG103"},
    "test_backward_in_a_method": {"GG102", "GG103"},
    "test_backward_in_worker_threads": {"GG101", "GG102", "GG103"},
}
MAY = {
    "test_estimator_result": {"GG102"},
    "test_dataclass_result": {"GG102"},
    "test_grad_for_the_source": {"GG103"},
    "test_partial_grad_for_the_source": {"GG103"},
}

DETAILS = {
    "test_backward": {
        "GG101": {"object": "args[0]", "shape": [3], "direction": "argument"},
        "GG102": {"shape": [3], "direction": "result"},
        "GG103": {"shape": [3], "direction": "result", "dtype": "float32", "backend": "loky"},
    },
    "test_tuple_results": {"GG103": {"shape": []}},
}

ROWS = torch.arange(12.0).reshape(4, 3) / 12
TARGETS = torch.ones(4, 1)
GLOBAL = torch.ones(3, requires_grad=True)


@dataclasses.dataclass
class Outcome:
    name: str
    loss: torch.Tensor


class Estimator:
    def fit(self, rows, targets):
        self.model_ = nn.Linear(rows.shape[1], 1)
        self.loss_ = ((self.model_(rows) - targets) ** 2).mean()
        return self


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k):
    return x * k


def total(x, k):
    return (x * k).sum()


def loss_of(model, rows, targets):
    return ((model(rows) - targets) ** 2).mean()


def own_leaf(k):
    return torch.ones(3, requires_grad=True) * k


def own_model(k):
    return nn.Linear(3, 1)(ROWS).sum() * k


def scale_own(x):
    return torch.ones(3, requires_grad=True) * x


def from_global(k):
    return GLOBAL * k


def tuple_of(x, k):
    return k, total(x, k)


def dictionary_of(x, k):
    return {"k": k, "parts": [x * k]}


def outcome_of(x, k):
    return Outcome("a", total(x, k))


def fitted(k):
    return Estimator().fit(ROWS, TARGETS)


def model_and_loss(k):
    model = nn.Linear(3, 1)
    return model, loss_of(model, ROWS, TARGETS)


def gradients(model, rows, targets):
    return torch.autograd.grad(loss_of(model, rows, targets), list(model.parameters()))


def jacobian_row(x, k):
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad((x**2)[k], x)
    return grad


def features(rows):
    return (rows**2).sum(1, keepdim=True)


def detached_times(x, k):
    return (x * k).detach()


def trained(k):
    model = nn.Linear(3, 1)
    loss_of(model, ROWS, TARGETS).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return model.state_dict()


# --- the gradient stops --------------------------------------------------------------------


def test_backward():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0] + out[1]).mean().backward()  # -> GG103:error
    assert x.grad is None
    assert out[0].grad is not None


def test_backward_on_one_result():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    out[1].sum().backward()  # -> GG103:error
    assert x.grad is None


def test_backward_on_the_result_itself():
    x = leaf()
    loss = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))[0]  # -> GG101 GG102
    loss.backward()  # -> GG103:error
    assert x.grad is None
    assert loss.grad.item() == 1.0


def test_non_leaf_shipped():
    x = leaf()
    y = (x * 3).exp()
    out = Parallel(n_jobs=2)(delayed(times)(y, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_module_shipped():
    model = nn.Linear(3, 1)
    losses = Parallel(n_jobs=2)(delayed(loss_of)(model, ROWS, TARGETS) for _ in (1, 2))  # -> GG102
    sum(losses).backward()  # -> GG103:error
    assert model.weight.grad is None


def test_bound_module_method():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(model.forward)(rows) for rows in ROWS.split(2))  # -> GG102
    torch.cat(out).sum().backward()  # -> GG103:error
    assert model.weight.grad is None


def test_parameter_shipped():
    weight = nn.Parameter(torch.ones(3))
    out = Parallel(n_jobs=2)(delayed(times)(weight, k) for k in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:error
    assert weight.grad is None


def test_closure_over_module():
    model = nn.Linear(3, 1)

    def work(k):
        return model(ROWS).sum() * k

    out = Parallel(n_jobs=2)(delayed(work)(k) for k in (1, 2))  # -> GG102
    sum(out).backward()  # -> GG103:error
    assert model.weight.grad is None


def test_closure_over_tensor():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(lambda k: (x * k).sum())(k) for k in (1, 2))  # -> GG101 GG102
    sum(out).backward()  # -> GG103:error
    assert x.grad is None


def test_own_leaf_of_the_worker():
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:warning
    assert out[0].grad.tolist() == [1.0] * 3


def encoded(encoder, rows):
    return encoder(rows)


def train_on_features(*trained, encoder):
    head = nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (head, *trained)]
    out = Parallel(n_jobs=2)(delayed(encoded)(encoder, ROWS * k) for k in (1, 2))  # -> GG102
    return sum(head(one).square().mean() for one in out), optimizers


def test_features_of_a_fixed_encoder():
    encoder = nn.Linear(3, 4)
    for _ in range(2):
        loss, optimizers = train_on_features(encoder=encoder)
        loss.backward()  # -> GG103:warning
        optimizers[0].step()
    assert encoder.weight.grad is None


def test_features_of_an_encoder_that_is_trained():
    encoder = nn.Linear(3, 4)
    loss, _optimizers = train_on_features(encoder, encoder=encoder)
    loss.backward()  # -> GG103:error
    assert encoder.weight.grad is None


def test_features_of_an_encoder_that_is_trained_later():
    encoder, optimizers = nn.Linear(3, 4), []
    for _ in range(2):
        loss, heads = train_on_features(encoder=encoder)
        optimizers = [*optimizers, *heads, torch.optim.SGD(encoder.parameters(), 0.1)]
        loss.backward()  # -> GG103:error
        optimizers[-1].step()


def test_features_for_nothing_else():
    encoder, head = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    out = Parallel(n_jobs=2)(delayed(encoded)(encoder, ROWS * k) for k in (1, 2))  # -> GG102
    sum(one.sum() for one in out).backward()  # -> GG103:error
    optimizer.step()


def test_features_of_a_leaf():
    x, head = leaf(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(head(one).square().sum() for one in out).backward()  # -> GG103:error
    optimizer.step()


inherited = nn.Linear(3, 1)


def loss_of_inherited(k):
    return inherited(torch.full((2, 3), float(k))).square().sum()


def test_model_that_forked_workers_inherit():
    parallel = Parallel(2, backend="multiprocessing")
    losses = parallel(delayed(loss_of_inherited)(k) for k in range(20))  # -> GG102
    torch.stack(losses).sum().backward()  # -> GG103:error
    assert inherited.weight.grad is None


def loss_of_its_own(k):
    return nn.Linear(3, 1)(torch.full((2, 3), float(k))).square().sum()


def test_own_leaves_of_forked_workers():
    parallel = Parallel(2, backend="multiprocessing")
    losses = parallel(delayed(loss_of_its_own)(k) for k in range(20))  # -> GG102
    torch.stack(losses).sum().backward()  # -> GG103:warning


def test_own_model_of_the_worker():
    out = Parallel(n_jobs=2)(delayed(own_model)(k) for k in (1, 2))  # -> GG102
    sum(out).backward()  # -> GG103:warning
    assert out[0].grad is not None


def test_detached_tensor_shipped():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(scale_own)(x.detach()) for _ in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:warning
    assert out[0].grad is not None


def test_importable_global():
    out = Parallel(n_jobs=2)(delayed(from_global)(k) for k in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:warning
    assert GLOBAL.grad is None


def test_autograd_backward():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    torch.autograd.backward(out[0] + out[1])  # -> GG103:error
    assert x.grad is None


def test_autograd_backward_with_weights():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    torch.autograd.backward(
        [t * 2 for t in out], grad_tensors=[torch.ones(3)] * 2
    )  # -> GG103:error
    assert x.grad is None
    assert out[0].grad.tolist() == [2.0] * 3


def test_autograd_grad_of_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    grads = torch.autograd.grad((out[0] * out[1]).sum(), out)
    assert grads[0].tolist() == [2.0] * 3
    assert x.grad is None


def test_autograd_grad_of_one_result():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (grad,) = torch.autograd.grad(outputs=out[0].pow(2).sum(), inputs=out[0])
    assert grad.tolist() == [2.0] * 3


def test_imported_names():
    from torch.autograd import grad

    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert grad(sum(out).sum(), out[0])[0].tolist() == [1.0] * 3


def test_vector_jacobian():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0] ** 2).backward(torch.ones(3))  # -> GG103:error
    assert x.grad is None


def test_stack():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in range(6))  # -> GG101 GG102
    loss = torch.stack(out).sum()
    loss.backward()  # -> GG103:error
    assert x.grad is None


def test_wrapped_at_once():
    x = leaf()
    rows = torch.stack(Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2)))  # -> GG101 GG102
    rows.sum().backward()  # -> GG103:error
    assert x.grad is None


def test_cat_and_mean():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    loss = torch.cat(out).view(2, 3).mean(0).relu().max()
    loss.backward()  # -> GG103:error
    assert x.grad is None


def test_python_sum():
    x = leaf()
    loss = sum(Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2)))  # -> GG101 GG102
    loss.backward()  # -> GG103:error
    assert x.grad is None


def test_through_a_model_of_the_parent():
    x = leaf()
    head = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    head(torch.stack(out)).sum().backward()  # -> GG103:error
    assert head.weight.grad is not None
    assert x.grad is None


def test_partial_gradient():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (sum(out).sum() + (x * 0.5).sum()).backward()  # -> GG103:error
    assert x.grad.tolist() == [0.5] * 3


def test_backward_twice():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    out[0].sum().backward()  # -> GG103:error
    out[0].exp().sum().backward()  # -> GG103?
    assert x.grad is None


def test_retain_graph():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    loss = sum(out).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)  # -> GG103:error
    assert out[0].grad.tolist() == [2.0] * 3


def test_create_graph():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (grad,) = torch.autograd.grad((out[0] ** 3).sum(), out[0], create_graph=True)
    grad.sum().backward()  # -> GG103:error
    assert out[0].grad.tolist() == [6.0] * 3


def test_training_loop():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        losses = Parallel(n_jobs=2)(
            delayed(loss_of)(model, rows, targets)
            for rows, targets in zip(ROWS.split(2), TARGETS.split(2), strict=True)
        )  # -> GG102
        torch.stack(losses).mean().backward()  # -> GG103:error
        optimizer.step()
    assert torch.equal(before, model.weight)


def test_optimizer_closure():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = sum(
            Parallel(n_jobs=2)(delayed(loss_of)(model, ROWS, TARGETS) for _ in (1, 2))
        )  # -> GG102
        loss.backward()  # -> GG103:error
        return loss

    optimizer.step(closure)
    assert model.weight.grad is None


def test_tuple_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(tuple_of)(x, k) for k in (1, 2))  # -> GG101 GG102
    names, losses = zip(*out, strict=True)
    sum(losses).backward()  # -> GG103:error
    assert names == (1, 2)
    assert x.grad is None


def test_dictionary_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(dictionary_of)(x, k) for k in (1, 2))  # -> GG101 GG102
    torch.stack([one["parts"][0] for one in out]).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_estimator_result():
    out = Parallel(n_jobs=2)(delayed(fitted)(k) for k in (1, 2))  # -> GG102?
    out[0].loss_.backward()  # -> GG103:warning
    assert out[0].model_.weight.grad is None


def test_dataclass_result():
    x = nn.Parameter(torch.ones(3))
    out = Parallel(n_jobs=2)(delayed(outcome_of)(x, k) for k in (1, 2))  # -> GG102?
    (out[0].loss + out[1].loss).backward()  # -> GG103:error
    assert x.grad is None


def test_two_calls_one_backward():
    x, model = leaf(), nn.Linear(3, 1)
    first = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    second = Parallel(n_jobs=2)(delayed(loss_of)(model, ROWS, TARGETS) for _ in (1, 2))  # -> GG102
    (sum(first).sum() + sum(second)).backward()  # -> GG103:error
    assert x.grad is None
    assert model.weight.grad is None


def test_first_call_only():
    x = leaf()
    first = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    second = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (3, 4))  # -> GG101 GG102
    sum(first).sum().backward()  # -> GG103:error
    assert second[0].grad is None


def test_results_shipped_on():
    x = leaf()
    first = Parallel(n_jobs=2)(delayed(times)(x.detach() * k, k) for k in (1, 2))
    assert not first[0].requires_grad
    second = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    third = Parallel(n_jobs=2)(delayed(times)(t, 2) for t in second)  # -> GG101 GG102
    sum(third).sum().backward()  # -> GG103:error
    assert x.grad is None
    assert second[0].grad is None


def test_results_shipped_on_unused():
    x = leaf()
    first = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    out = Parallel(n_jobs=2)(delayed(float)(t.sum()) for t in first)  # -> GG101
    assert out == [3.0, 6.0]


def run_backward(loss):
    loss.backward()  # -> GG103:error


def test_backward_in_a_helper():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    run_backward(sum(out).sum())
    assert x.grad is None


class Trainer:
    def __init__(self):
        self.model = nn.Linear(3, 1)
        self.n_jobs = 2

    def losses(self):
        return Parallel(n_jobs=self.n_jobs)(
            delayed(loss_of)(self.model, rows, TARGETS[:2]) for rows in ROWS.split(2)
        )  # -> GG102

    def step(self):
        loss = torch.stack(self.losses()).mean()
        loss.backward()  # -> GG103:error
        return loss


def test_backward_in_a_method():
    trainer = Trainer()
    trainer.step()
    assert trainer.model.weight.grad is None


def test_backward_in_a_thread():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    thread = threading.Thread(target=lambda: sum(out).sum().backward())  # -> GG103:error
    thread.start()
    thread.join()
    assert x.grad is None
    assert out[0].grad is not None


def test_backward_in_worker_threads():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_backward, out))
    assert x.grad is None


def test_half_of_the_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in range(8))  # -> GG101 GG102
    torch.stack(out[::2]).sum().backward()  # -> GG103:error
    assert [t.grad is None for t in out] == [False, True] * 4


def test_clone():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    copies = [t.clone() for t in out]
    del out
    sum(copies).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_slice_of_the_result():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    out[0][1].backward()  # -> GG103:error
    assert out[0].grad.tolist() == [0.0, 1.0, 0.0]


def test_under_enable_grad():
    x = leaf()
    with torch.no_grad():
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102 GG301
        with torch.enable_grad():
            loss = sum(out).sum()
        loss.backward()  # -> GG103:error
    assert x.grad is None


def test_result_hook_of_the_user():
    seen = []
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    out[0].register_hook(lambda grad: seen.append(grad.tolist()))
    (out[0] * 2).sum().backward()  # -> GG103:warning
    assert seen == [[2.0] * 3]


def test_grad_cleared_between():
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    out[0].sum().backward()  # -> GG103:warning
    out[0].grad = None
    assert out[0].grad is None


def test_numbers_after_backward():
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    loss = (out[0] * out[1]).sum()
    loss.backward()  # -> GG103:warning
    assert (out[0].grad.tolist(), out[1].grad.tolist()) == ([2.0] * 3, [1.0] * 3)
    assert loss.item() == 6.0


# --- a graph was dropped, and no backward reached it ---------------------------------------


def test_never_used():
    x = leaf()
    Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102


def test_only_printed():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert [f"{loss.item():.1f}" for loss in out] == ["3.0", "6.0"]


def test_under_no_grad():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    w = torch.tensor(1.0, requires_grad=True)
    with torch.no_grad():
        mean = torch.stack(out).mean()
    (w * mean).backward()
    assert w.grad.item() == 4.5


def test_detached():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    loss = sum(t.detach() for t in out).sum() * x.sum()
    loss.backward()
    assert x.grad.tolist() == [9.0] * 3


def test_data():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0].data * x).sum().backward()
    assert x.grad.tolist() == [1.0] * 3


def test_stacked_then_detached():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    fixed = torch.stack(out).mean(0).detach()
    (fixed * x).sum().backward()
    assert x.grad.tolist() == [1.5] * 3
    assert out[0].grad is None


def test_requires_grad_switched_off():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    for t in out:
        t.requires_grad_(False)
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_new_leaf_of_the_detached():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    fresh = [t.detach().requires_grad_() for t in out]
    sum(fresh).sum().backward()
    assert fresh[0].grad is not None
    assert out[0].grad is None


def test_weights_from_items():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    weight = sum(t.item() for t in out)
    (x * weight).sum().backward()
    assert x.grad.tolist() == [9.0] * 3


def test_backward_elsewhere():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    w = leaf()
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2.0] * 3
    assert out[0].grad is None


def test_backward_over_the_source():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (x * len(out)).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_backward_to_other_inputs():
    w = leaf()
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    (sum(out) * w).sum().backward(inputs=[w])
    assert w.grad.tolist() == [3.0] * 3
    assert out[0].grad is None


def test_autograd_grad_of_others():
    w = leaf()
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    (grad,) = torch.autograd.grad((sum(out) * w).sum(), w)
    assert grad.tolist() == [3.0] * 3


def test_backward_before_the_call():
    x = leaf()
    (x * 2).sum().backward()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert x.grad.tolist() == [2.0] * 3
    assert out[0].grad is None


def test_model_returned_beside_loss():
    out = Parallel(n_jobs=2)(delayed(model_and_loss)(k) for k in (1, 2))  # -> GG102
    model, loss = out[0]
    loss_of(model, ROWS, TARGETS).backward()
    assert model.weight.grad is not None
    assert loss.grad is None


# --- the gradient of the results themselves is what is asked for ---------------------------


def backward_from(model, rows, gradient):
    out = model(rows)
    return torch.autograd.grad(out, list(model.parameters()), gradient)


def test_split_learning():
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    shards = ROWS.split(2)
    out = Parallel(n_jobs=2)(delayed(body.forward)(rows) for rows in shards)  # -> GG102
    loss = head(torch.cat(out)).square().sum()
    *boundary, _ = torch.autograd.grad(loss, [*out, head.weight])
    parts = Parallel(n_jobs=2)(
        delayed(backward_from)(body, rows, gradient)
        for rows, gradient in zip(shards, boundary, strict=True)
    )
    wanted = torch.autograd.grad(head(body(ROWS)).square().sum(), list(body.parameters()))
    for grad, *shares in zip(wanted, *parts, strict=True):
        assert torch.allclose(grad, sum(shares))


def test_backward_for_the_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0] * out[1]).sum().backward(inputs=out)
    x.grad = out[0].grad + 2 * out[1].grad
    assert x.grad.tolist() == [4.0] * 3


def test_chain_rule_by_hand():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    loss = (sum(out) * x).sum()
    first, second, direct = torch.autograd.grad(loss, [*out, x])
    assert (direct + first + 2 * second).tolist() == [6.0] * 3


def test_part_of_a_chain_rule_by_hand():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    loss = (sum(out) * x).sum()
    first, direct = torch.autograd.grad(loss, [out[0], x])  # -> GG103:error
    assert (direct + first).tolist() == [4.0] * 3


def scaled(gradient, k):
    return gradient * k


def test_split_learning_by_attribute():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    for result in out:
        result.retain_grad()
    (out[0] * out[1]).sum().backward()
    assert (out[0].grad + 2 * out[1].grad).tolist() == [4.0] * 3


def test_gradient_sent_back():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0] * out[1]).sum().backward()
    shares = Parallel(n_jobs=2)(delayed(scaled)(out[k - 1].grad, k) for k in (1, 2))
    assert sum(shares).tolist() == [4.0] * 3


def test_part_of_the_gradient_sent_back():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (out[0] * out[1]).sum().backward()  # -> GG103:error
    shares = Parallel(n_jobs=2)(delayed(scaled)(out[0].grad, k) for k in (1, 2))
    assert sum(shares).tolist() == [6.0] * 3


def test_gradients_given_before_the_step():
    x = leaf()
    optimizer = torch.optim.SGD([x], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
        sum(out).sum().backward()
        x.grad = out[0].grad + 2 * out[1].grad
        optimizer.step()
    assert torch.allclose(x, torch.full((3,), 0.4))


def test_gradients_of_another_backward():
    x = leaf()
    optimizer = torch.optim.SGD([x], lr=0.1)
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    x.square().sum().backward()
    optimizer.step()
    assert torch.allclose(x, torch.full((3,), 0.8))


def test_optimized_result():
    start, _ = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    optimizer = torch.optim.SGD([start], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        start.square().sum().backward()
        optimizer.step()
    assert start.tolist() == [0.0] * 3


def test_meant_once_of_twice():
    x = leaf()
    optimizer = torch.optim.SGD([x], lr=0.1)
    for by_hand in (True, False):
        optimizer.zero_grad()
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
        sum(out).sum().backward()  # -> GG103:error
        if by_hand:
            x.grad = out[0].grad + 2 * out[1].grad
        optimizer.step()
    assert torch.allclose(x, torch.full((3,), 0.7))


def test_call_without_gradients():
    x, w = leaf(), leaf()
    with torch.no_grad():
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102 GG301
    (sum(out) * w).sum().backward()
    assert w.grad.tolist() == [3.0] * 3


# --- nothing to report, or only the shipping -----------------------------------------------


def test_returned_model_with_loss_inside():
    out = Parallel(n_jobs=2)(delayed(fitted)(k) for k in (1, 2))
    for estimator in out:
        loss_of(estimator.model_, ROWS, TARGETS).backward()
        assert estimator.model_.weight.grad is not None


def test_explicit_gradients():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(
        delayed(gradients)(model, rows, targets)
        for rows, targets in zip(ROWS.split(2), TARGETS.split(2), strict=True)
    )
    for p, *parts in zip(model.parameters(), *out, strict=True):
        p.grad = torch.stack(parts).mean(0)
    loss_of(model, ROWS, TARGETS).backward()
    expected = [2 * grad for grad in gradients(model, ROWS, TARGETS)]
    for p, want in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, want)


def test_vector_jacobian_by_hand():
    x = leaf()
    y = x * 3
    rows = Parallel(n_jobs=2)(delayed(jacobian_row)(y, k) for k in range(3))  # -> GG101
    y.backward(torch.stack(rows).sum(0))
    assert x.grad.tolist() == [18.0] * 3


def test_features_then_head():
    head = nn.Linear(1, 1)
    out = Parallel(n_jobs=2)(delayed(features)(rows) for rows in ROWS.split(2))
    head(torch.cat(out)).sum().backward()
    assert head.weight.grad is not None


def test_detached_features_then_head():
    x = leaf()
    head = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(detached_times)(x, k) for k in (1, 2))  # -> GG101
    head(torch.stack(out)).sum().backward()
    assert head.weight.grad is not None


def test_worker_does_backward_itself():
    model = nn.Linear(3, 1)
    model.load_state_dict(Parallel(n_jobs=2)(delayed(trained)(k) for k in (1, 2))[0])
    loss_of(model, ROWS, TARGETS).backward()
    assert model.weight.grad is not None


# --- open in the contract ------------------------------------------------------------------


def test_grad_for_the_source():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    (grad,) = torch.autograd.grad(sum(out), x, allow_unused=True)  # -> GG103?
    assert grad is None


def test_partial_grad_for_the_source():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    (grad,) = torch.autograd.grad(sum(out) + x.sum(), x)  # -> GG103?
    assert grad.tolist() == [1.0] * 3


def test_deep_copy_of_the_result():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    copy.deepcopy(out[0]).backward()  # -> GG103:error
    assert x.grad is None


def test_result_pickled_and_unpickled():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    pickle.loads(pickle.dumps(out))[0].backward()  # -> GG103:error
    assert x.grad is None


def test_result_saved_and_loaded(tmp_path):
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in (1, 2))  # -> GG101 GG102
    torch.save(out, tmp_path / "out.pt")
    sum(torch.load(tmp_path / "out.pt")).backward()  # -> GG103:error
    assert x.grad is None
