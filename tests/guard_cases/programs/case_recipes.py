"""Recipes around joblib and torch that are found in many programs.

Progress bars that replace joblib's callback, home-made backends, results that become parameters,
tensors whose identity is used again.
"""

import contextlib
import gc

import joblib
import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config, register_parallel_backend
from joblib._parallel_backends import LokyBackend, SequentialBackend, ThreadingBackend
from torch import nn

EXPECT = {
    "test_subclass_with_own_call": {"GG101"},
    "test_map_like_helper": {"GG102"},
}

DETAILS = {
    "test_progress_by_replaced_callback": {"GG101": {"object": "args[0]", "shape": [3]}},
    "test_physics_residuals": {"GG101": {"object": "args[1]"}, "GG103": {"shape": []}},
}

ROWS = torch.arange(12.0).reshape(4, 3) / 12
TARGETS = torch.ones(4, 1)


class NamedLoky(LokyBackend):
    pass


class NamedThreads(ThreadingBackend):
    pass


class NamedSequential(SequentialBackend):
    pass


register_parallel_backend("named_loky", NamedLoky)
register_parallel_backend("named_threads", NamedThreads)
register_parallel_backend("named_sequential", NamedSequential)


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k):
    return x * k


def number(x):
    return float(x.detach().sum())


def live(k):
    return torch.ones(3, requires_grad=True) * k


def loss_of(model, rows, targets):
    return ((model(rows) - targets) ** 2).mean()


def model_for(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 1)


@contextlib.contextmanager
def progress(counts):
    """The recipe that every search engine finds for a progress bar over joblib."""

    class CountingCallback(joblib.parallel.BatchCompletionCallBack):
        def __call__(self, *args, **kwargs):
            counts.append(self.batch_size)
            return super().__call__(*args, **kwargs)

    old = joblib.parallel.BatchCompletionCallBack
    joblib.parallel.BatchCompletionCallBack = CountingCallback
    try:
        yield
    finally:
        joblib.parallel.BatchCompletionCallBack = old


class ProgressParallel(Parallel):
    def __init__(self, total, *args, **kwargs):
        self.total, self.updates = total, []
        super().__init__(*args, **kwargs)

    def print_progress(self):
        self.updates.append(self.n_completed_tasks)


class OwnCall(Parallel):
    def __call__(self, iterable):
        return list(super().__call__(iterable))  # -> GG101?


# --- around joblib -------------------------------------------------------------------------


def test_progress_by_replaced_callback():
    x, counts = leaf(), []
    with progress(counts):
        out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in range(6))  # -> GG101 GG102
    assert sum(counts) == 6
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_progress_by_subclass():
    parallel = ProgressParallel(4, n_jobs=2)
    out = parallel(delayed(times)(leaf(), k) for k in range(4))  # -> GG101 GG102
    assert len(out) == 4
    assert max(parallel.updates) == 4


def test_subclass_with_own_call():
    assert OwnCall(n_jobs=2)(delayed(number)(leaf()) for _ in range(2)) == [3.0, 3.0]  # -> GG101?


def test_own_loky_backend():
    x = leaf()
    with parallel_config(backend="named_loky", n_jobs=2):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_own_thread_backend():
    x = leaf()
    with parallel_config(backend="named_threads", n_jobs=2):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))
    sum(out).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_own_sequential_backend():
    x = leaf()
    out = Parallel(n_jobs=2, backend="named_sequential")(delayed(times)(x, k) for k in (1, 2))
    sum(out).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_config_of_one_job():
    x = leaf()
    with parallel_config(backend="loky", n_jobs=1):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))
    sum(out).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def several(xs, k):
    return [x * k for x in xs]


def test_batches_by_hand():
    xs = [leaf() for _ in range(4)]
    batches = [xs[:2], xs[2:]]
    out = Parallel(n_jobs=2)(delayed(several)(batch, 2) for batch in batches)  # -> GG101 GG102
    torch.stack([t for part in out for t in part]).sum().backward()  # -> GG103:error
    assert all(x.grad is None for x in xs)


def pmap(function, items, **options):
    return Parallel(n_jobs=options.pop("n_jobs", 2), **options)(
        map(delayed(function), items)
    )  # -> GG102


def test_map_like_helper():
    assert [t.tolist()[0] for t in pmap(live, [1, 2])] == [1.0, 2.0]
    assert pmap(live, [1], n_jobs=1)[0].grad_fn is not None


# --- what people compute -------------------------------------------------------------------


def shifted_loss(x, index):
    with torch.no_grad():
        x[index] += 1e-2
        return float((x**2).sum())


def test_finite_differences():
    x = leaf()
    base = float((x**2).sum().detach())
    out = Parallel(n_jobs=2)(delayed(shifted_loss)(x, i) for i in range(3))  # -> GG101
    assert all(abs((one - base) / 1e-2 - 2.0) < 0.05 for one in out)
    assert x.tolist() == [1.0] * 3


def loss_at(model, step):
    with torch.no_grad():
        for p in model.parameters():
            p += step
    return loss_of(model, ROWS, TARGETS)


def test_loss_landscape():
    model = model_for(0)
    losses = Parallel(n_jobs=2)(delayed(loss_at)(model, step) for step in (0.0, 0.1))  # -> GG102
    assert np.array([loss.item() for loss in losses]).shape == (2,)


def fitness(vector, seed):
    model = model_for(0)
    noise = torch.randn(4, generator=torch.Generator().manual_seed(seed)) * 0.1
    nn.utils.vector_to_parameters(vector + noise, model.parameters())
    with torch.no_grad():
        return seed, loss_of(model, ROWS, TARGETS).item()


def test_evolution_strategy():
    vector = nn.utils.parameters_to_vector(model_for(0).parameters()).detach()
    scores = dict(Parallel(n_jobs=2)(delayed(fitness)(vector, seed) for seed in range(4)))
    assert sorted(scores) == [0, 1, 2, 3]


def local_round(state, rows, targets):
    model = nn.Linear(3, 1)
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, rows, targets).backward()
    optimizer.step()
    return model.state_dict()


def test_federated_round():
    model = model_for(0)
    for _ in range(2):
        states = Parallel(n_jobs=2)(
            delayed(local_round)(model.state_dict(), rows, TARGETS[:2]) for rows in ROWS.split(2)
        )
        mean = {name: sum(state[name] for state in states) / 2 for name in states[0]}
        model.load_state_dict(mean)
    loss_of(model, ROWS, TARGETS).backward()
    assert model.weight.grad is not None


def test_hogwild_by_threads():
    model = model_for(0)
    losses = Parallel(n_jobs=2, prefer="threads")(
        delayed(loss_of)(model, rows, TARGETS[:2]) for rows in ROWS.split(2)
    )
    sum(losses).backward()
    assert model.weight.grad is not None


def fold_score(model, train, test):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, ROWS[train], TARGETS[train]).backward()
        optimizer.step()
    with torch.no_grad():
        return loss_of(model, ROWS[test], TARGETS[test]).item(), model.weight.detach().numpy()


def test_cross_validation_by_hand():
    folds = [([0, 1], [2, 3]), ([2, 3], [0, 1])]
    out = Parallel(n_jobs=2)(delayed(fold_score)(model_for(0), *fold) for fold in folds)
    assert np.mean([score for score, _ in out]) >= 0


def predict(model, rows):
    model.eval()
    with torch.no_grad():
        return model(rows)


def predict_with_grad(model, rows):
    return model(rows)


def test_ensemble_predictions():
    models = [model_for(seed) for seed in range(3)]
    out = Parallel(n_jobs=2)(delayed(predict)(model, ROWS) for model in models)
    head = torch.ones(1, requires_grad=True)
    (torch.stack(out).mean(0) * head).sum().backward()
    assert head.grad is not None


def test_ensemble_predictions_with_grad():
    models = [model_for(seed) for seed in range(3)]
    out = Parallel(n_jobs=2)(delayed(predict_with_grad)(m, ROWS) for m in models)  # -> GG102
    assert torch.stack(out).mean(0).detach().numpy().shape == (4, 1)


# --- what becomes of a result --------------------------------------------------------------


def test_parameter_from_a_result():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    weight = nn.Parameter(out[1])
    (weight**2).sum().backward()
    assert weight.grad.tolist() == [4.0] * 3
    assert out[1].grad is None


def test_weights_loaded_from_a_result():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    with torch.no_grad():
        model.weight.copy_(out[0])
    model.load_state_dict({"weight": out[1].view(1, 3), "bias": torch.zeros(1)})
    model.bias.data = out[0].data[:1]
    model(ROWS).sum().backward()
    assert out[0].grad is None
    assert out[1].grad is None


def test_new_tensor_from_a_result():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    fresh = torch.tensor(out[1].tolist(), requires_grad=True)
    again = torch.from_numpy(out[0].detach().numpy()).requires_grad_()
    (fresh * again).sum().backward()
    assert out[1].grad is None


def test_result_as_target():
    model = model_for(0)
    out = Parallel(n_jobs=2)(
        delayed(predict_with_grad)(model_for(k), ROWS) for k in (1, 2)
    )  # -> GG102
    targets = torch.stack(out).mean(0).detach()
    loss_of(model, ROWS, targets).backward()
    assert model.weight.grad is not None


def test_result_as_input_of_a_frozen_path():
    weight = leaf()
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    with torch.no_grad():
        mask = out[0] > 0
        scale = out[1].max()
    torch.where(mask, weight * scale, weight).sum().backward()
    assert weight.grad.tolist() == [2.0] * 3


def own_gradient(x):
    (x**2).sum().backward()
    return x.grad


def test_backward_in_the_worker_over_results():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    grads = Parallel(n_jobs=2)(delayed(own_gradient)(t) for t in out)
    assert [grad.tolist() for grad in grads] == [[2.0] * 3, [4.0] * 3]
    assert out[0].grad is None


def asked_gradient(x):
    loss = (x**2).sum()
    return loss.item(), torch.autograd.grad(loss, x)[0].numpy()


def asked_norm(x):
    return torch.autograd.grad((x**2).sum(), x)[0].norm().item()


def nested_gradient(x):
    return sum(Parallel(n_jobs=2, backend="loky")(delayed(own_gradient)(x) for _ in (1, 2)))


def test_gradient_of_a_leaf_returned():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(2):
        weight.grad = sum(Parallel(n_jobs=2)(delayed(own_gradient)(weight) for _ in range(3)))
        optimizer.step()
        out = Parallel(n_jobs=2)(delayed(asked_gradient)(weight) for _ in range(3))
        weight.grad = torch.from_numpy(sum(gradient for _, gradient in out))
        optimizer.step()


def test_gradient_of_a_leaf_through_nested_calls():
    weight = torch.ones(3, requires_grad=True)
    tasks = [delayed(nested_gradient)(weight) for _ in (1, 2)]
    assert sum(Parallel(n_jobs=2, batch_size=1)(tasks)).tolist() == [8.0] * 3


def test_gradient_of_a_leaf_dropped():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    Parallel(n_jobs=2)(delayed(own_gradient)(weight) for _ in range(2))  # -> GG101
    optimizer.step()


def test_norm_of_a_gradient_returned():
    weight = torch.ones(3, requires_grad=True)
    Parallel(n_jobs=2)(delayed(asked_norm)(weight) for _ in (1, 2))  # -> GG101


def test_some_gradients_of_a_leaf_returned():
    weight = torch.ones(3, requires_grad=True)
    tasks = (delayed(task)(weight) for task in (own_gradient, asked_norm))
    Parallel(n_jobs=2, batch_size=1)(tasks)  # -> GG101


def test_identities_used_again():
    """New tensors soon get the address of a result that is gone: they are no results."""
    for _ in range(3):
        out = Parallel(n_jobs=2)(delayed(live)(k) for k in range(20))  # -> GG102
        del out
        gc.collect()
        fresh = [leaf() for _ in range(200)]
        sum(fresh).sum().backward()
        assert all(t.grad is not None for t in fresh)


def test_other_tensors_after_results_are_gone():
    x = leaf()
    Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    for _ in range(50):
        y = leaf()
        (y * x).sum().backward()
    assert x.grad.tolist() == [50.0] * 3


def gradients(model, rows, targets):
    return torch.autograd.grad(loss_of(model, rows, targets), tuple(model.parameters()))


def test_gradients_summed_by_the_parent():
    model = model_for(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = loss_of(model, ROWS, TARGETS).item()
    for _ in range(3):
        parts = Parallel(n_jobs=2)(
            delayed(gradients)(model, rows, TARGETS[:2]) for rows in ROWS.split(2)
        )
        for p, *grads in zip(model.parameters(), *parts, strict=True):
            p.grad = torch.stack(grads).mean(0)
        optimizer.step()
    assert loss_of(model, ROWS, TARGETS).item() < before


def value_and_grad(x):
    x = x.detach().requires_grad_()
    value = (x**3).sum()
    (grad,) = torch.autograd.grad(value, x)
    return value.item(), grad


class FromWorkers(torch.autograd.Function):
    """A function of the parent's graph whose forward and gradient both come from workers.

    Inside `forward` the tensor still says that it requires grad, and so do its views: by the
    letter GG101, although nothing is lost.
    """

    @staticmethod
    def forward(ctx, x):
        out = Parallel(n_jobs=2)(delayed(value_and_grad)(part) for part in x.split(2))  # -> GG101?
        ctx.save_for_backward(torch.cat([grad for _, grad in out]))
        return torch.tensor(sum(value for value, _ in out))

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad


def test_gradient_returned_and_handed_on():
    x = torch.ones(4, requires_grad=True)
    FromWorkers.apply(x * 2).backward()
    assert x.grad.tolist() == [24.0] * 4
    out = Parallel(n_jobs=2)(delayed(value_and_grad)(part) for part in (x * 2).split(2))  # -> GG101
    assert [value for value, _ in out] == [16.0, 16.0]


def load_image(k):
    return np.full((4, 4, 3), k, dtype=np.uint8)


def test_images_to_tensors():
    images = Parallel(n_jobs=2)(delayed(load_image)(k) for k in range(4))
    batch = torch.from_numpy(np.stack(images)).float().permute(0, 3, 1, 2)
    model = nn.Conv2d(3, 2, 3)
    model(batch).mean().backward()
    assert model.weight.grad is not None


def features_of(text):
    return torch.tensor([float(len(text)), float(text.count("a")), 1.0])


def test_text_features_then_training():
    rows = torch.stack(Parallel(n_jobs=2)(delayed(features_of)(t) for t in ("a", "bab", "c", "")))
    model = model_for(0)
    loss_of(model, rows, TARGETS).backward()
    assert model.weight.grad is not None


def rollout(policy, seed, with_log_prob=True):
    torch.manual_seed(seed)
    choices = torch.distributions.Bernoulli(logits=policy(ROWS).squeeze(1))
    actions = choices.sample()
    record = {"actions": actions, "reward": float(actions.sum())}
    if with_log_prob:
        record["log_prob"] = choices.log_prob(actions).sum()
    return record


def test_sampling_from_a_policy():
    out = Parallel(n_jobs=2)(delayed(rollout)(model_for(0), seed) for seed in (1, 2))  # -> GG102
    assert all(0 <= record["reward"] <= 4 for record in out)


def test_policy_gradient_from_workers():
    policy = model_for(0)
    out = Parallel(n_jobs=2)(delayed(rollout)(policy, seed) for seed in (1, 2))  # -> GG102
    loss = -torch.stack([record["log_prob"] * record["reward"] for record in out]).mean()
    loss.backward()  # -> GG103:error
    assert policy.weight.grad is None


def test_policy_gradient_recomputed():
    policy = model_for(0)
    out = Parallel(n_jobs=2)(delayed(rollout)(policy, seed, False) for seed in (1, 2))
    loss = 0.0
    for record in out:
        choices = torch.distributions.Bernoulli(logits=policy(ROWS).squeeze(1))
        loss = loss - choices.log_prob(record["actions"]).sum() * record["reward"]
    loss.backward()
    assert policy.weight.grad is not None


def adapted_loss(model, rows, targets):
    """One differentiable step, and the loss after it: the outer gradient needs the graph."""
    names = [name for name, _ in model.named_parameters()]
    grads = torch.autograd.grad(
        loss_of(model, rows, targets), tuple(model.parameters()), create_graph=True
    )
    state = {
        name: p - 0.1 * grad for name, p, grad in zip(names, model.parameters(), grads, strict=True)
    }
    return ((torch.func.functional_call(model, state, rows) - targets) ** 2).mean()


def test_maml_inner_loop():
    model = model_for(0)
    losses = Parallel(n_jobs=2)(
        delayed(adapted_loss)(model, rows, TARGETS[:2]) for rows in ROWS.split(2)
    )  # -> GG102
    torch.stack(losses).sum().backward()  # -> GG103:error
    assert model.weight.grad is None


def meta_gradient(model, rows, targets):
    loss = adapted_loss(model, rows, targets)
    return loss.item(), torch.autograd.grad(loss, tuple(model.parameters()))


def test_meta_gradient_returned():
    model = model_for(0)
    out = Parallel(n_jobs=2)(
        delayed(meta_gradient)(model, rows, TARGETS[:2]) for rows in ROWS.split(2)
    )
    for p, *grads in zip(model.parameters(), *(grads for _, grads in out), strict=True):
        p.grad = sum(grads)
    assert model.weight.grad is not None


def residual(model, points):
    u = model(points)
    (du,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    return ((du - 1) ** 2).mean()


def test_physics_residuals():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    points = [ROWS[:2].clone().requires_grad_(), ROWS[2:].clone().requires_grad_()]
    losses = Parallel(n_jobs=2)(delayed(residual)(model, part) for part in points)  # -> GG101 GG102
    sum(losses).backward()  # -> GG103:error
    assert model[0].weight.grad is None


def tree_output(x, depth):
    return torch.sigmoid(x * depth).sum(dim=1, keepdim=True)


def test_soft_boosting():
    """Part of the gradient goes through workers, part stays: not None, just wrong."""
    encoder = model_for(0)
    hidden = encoder(ROWS).expand(4, 3)
    out = Parallel(n_jobs=2)(delayed(tree_output)(hidden, k) for k in (1, 2))  # -> GG101 GG102
    (torch.cat(out, 1).sum() + hidden.sum()).backward()  # -> GG103:error
    right = model_for(0)
    hidden = right(ROWS).expand(4, 3)
    whole = torch.cat([tree_output(hidden, k) for k in (1, 2)], 1)
    (whole.sum() + hidden.sum()).backward()
    assert encoder.weight.grad is not None
    assert not torch.allclose(encoder.weight.grad, right.weight.grad)
