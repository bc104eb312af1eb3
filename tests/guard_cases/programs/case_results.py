"""What loky workers hand back.

GG102 is for a tensor with a `grad_fn`, alone or in plain containers. Parameters, gradients,
detached values, whole models and estimators come back as they should.
"""

import collections
import copy
import dataclasses
import types
import typing

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn

MAY = {"test_dataclass": {"GG102"}, "test_simple_namespace": {"GG102"}}

DETAILS = {
    "test_tensor": {
        "GG102": {
            "direction": "result",
            "shape": [3],
            "dtype": "float32",
            "device": "cpu",
            "backend": "loky",
            "framework": "torch",
        }
    },
    "test_dictionary": {"GG102": {"direction": "result", "shape": []}},
    "test_half_precision": {"GG102": {"dtype": "float16"}},
    "test_complex": {"GG102": {"dtype": "complex64"}},
    "test_scalar": {"GG102": {"shape": []}},
    "test_multiple_of_a_shipped_tensor": {
        "GG101": {"direction": "argument", "shape": [2]},
        "GG102": {"direction": "result", "shape": [2]},
    },
}

Pair = collections.namedtuple("Pair", ["name", "value"])


class TypedPair(typing.NamedTuple):
    name: str
    value: torch.Tensor


@dataclasses.dataclass
class Outcome:
    name: str
    value: torch.Tensor


class Estimator:
    """An estimator in the style of scikit-learn that keeps what it last computed."""

    def __init__(self, steps=3):
        self.steps = steps

    def fit(self, rows, targets):
        self.model_ = nn.Linear(rows.shape[1], 1)
        optimizer = torch.optim.SGD(self.model_.parameters(), lr=0.01)
        self.losses_ = []
        for _ in range(self.steps):
            optimizer.zero_grad()
            self.loss_ = ((self.model_(rows) - targets) ** 2).mean()
            self.loss_.backward()
            self.losses_.append(self.loss_)
            optimizer.step()
        return self


class Box:
    def __init__(self, value):
        self.value = value


class Tagged(torch.Tensor):
    pass


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.last_loss = None

    def forward(self, rows):
        out = self.linear(rows)
        self.last_loss = out.sum()
        return out


ROWS = torch.arange(12.0).reshape(4, 3) / 12
TARGETS = torch.ones(4, 1)


def live(k, size=3, dtype=torch.float32):
    """A tensor with history, made from a leaf of the worker's own."""
    return torch.ones(size, dtype=dtype, requires_grad=True) * k


def live_scalar(k):
    return torch.tensor(2.0, requires_grad=True) * k


def loss_of_own_model(seed):
    torch.manual_seed(seed)
    return ((nn.Linear(3, 1)(ROWS) - TARGETS) ** 2).mean()


def in_tuple(k):
    return k, live(k)


def in_list(k):
    return [live(k), live(k + 1)]


def in_dictionary(k):
    return {"k": k, "loss": live(k).sum()}


def nested(k):
    return {"epochs": [(k, {"losses": [live(k).sum()]})]}


def in_namedtuple(k):
    return Pair("a", live(k))


def in_typed_namedtuple(k):
    return TypedPair("a", live(k))


def largest(k):
    return live(k).max(dim=0)


def in_ordered_dict(k):
    return collections.OrderedDict(loss=live(k))


def in_deque(k):
    return collections.deque([live(k)])


def in_dataclass(k):
    return Outcome("a", live(k))


def in_namespace(k):
    return types.SimpleNamespace(value=live(k))


def in_box(k):
    return Box(live(k))


def train(seed, steps=3):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(ROWS) - TARGETS) ** 2).mean()
        loss.backward()
        optimizer.step()
    return model, optimizer, loss


def trained_model(seed):
    return train(seed)[0]


def model_and_optimizer(seed):
    return train(seed)[:2]


def model_and_live_loss(seed):
    model, _, loss = train(seed)
    return model, loss


def model_and_loss_value(seed):
    model, _, loss = train(seed)
    return {"model": model, "loss": loss.item(), "history": [loss.detach()]}


def trained_state(seed, keep_vars=False):
    return train(seed)[0].state_dict(keep_vars=keep_vars)


def trained_optimizer_state(seed):
    return train(seed)[1].state_dict()


def live_losses(seed):
    model = train(seed)[0]
    return [((model(ROWS) - TARGETS) ** 2).mean() for _ in range(2)]


def pieces(k):
    return live(k, 4).split(2)


def parameters(model):
    return list(model.parameters())


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters())


def gradients(model, rows):
    model.zero_grad()
    model(rows).sum().backward()
    return [p.grad for p in model.parameters()]


def gradients_by_grad(model, rows):
    return torch.autograd.grad(model(rows).sum(), list(model.parameters()))


def gradient_with_graph(k):
    x = torch.ones(2, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum() * k, x, create_graph=True)
    return grad


def gradient_of(x):
    leaf = x.detach().requires_grad_()
    (leaf**2).sum().backward()
    return leaf.grad


def times(x, k):
    return x * k


def same(x):
    return x


def sum_without_grad(x):
    with torch.no_grad():
        return (x * 2).sum()


@torch.inference_mode()
def sum_in_inference(x):
    return (x * 2).sum().clone()


def detached_sum(x):
    return (x * 2).sum().detach()


def number(x):
    return (x * 2).sum().item()


def array(k):
    return live(k).detach().numpy()


def one_in_many(k):
    return live(k) if k == 37 else torch.full((3,), float(k))


def live_and_detached(k):
    y = live(k)
    return y, y.detach()


def backward_only(model, rows):
    model(rows).sum().backward()


def own_leaf(k):
    return torch.full((3,), float(k), requires_grad=True)


def order(k):
    return live(k, 4).argsort()


def remembering(seed):
    torch.manual_seed(seed)
    model = Remembering()
    model(ROWS)
    return model


def fitted(steps):
    return Estimator(steps).fit(ROWS, TARGETS)


def fitted_list(steps):
    return [fitted(steps), fitted(steps + 1)]


def tagged(k):
    return torch.ones(3).as_subclass(Tagged).requires_grad_() * k


def nothing(k):
    live(k).sum().backward()


def copied(model):
    return copy.deepcopy(model)


# --- history that is dropped ---------------------------------------------------------------


def test_tensor():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    assert [t.grad_fn for t in out] == [None, None]
    assert [t.requires_grad for t in out] == [True, True]


def test_loss_of_own_model():
    losses = Parallel(n_jobs=2)(delayed(loss_of_own_model)(k) for k in (1, 2))  # -> GG102
    assert all(loss.is_leaf for loss in losses)


def test_loss_only_printed():
    losses = Parallel(n_jobs=2)(delayed(loss_of_own_model)(k) for k in (1, 2))  # -> GG102
    assert all(f"{loss.item():.2f}" for loss in losses)


def test_tuple():
    out = Parallel(n_jobs=2)(delayed(in_tuple)(k) for k in (1, 2))  # -> GG102
    assert [pair[1].is_leaf for pair in out] == [True, True]


def test_list():
    out = Parallel(n_jobs=2)(delayed(in_list)(k) for k in (1, 2))  # -> GG102
    assert out[1][1].tolist() == [3.0] * 3


def test_dictionary():
    out = Parallel(n_jobs=2)(delayed(in_dictionary)(k) for k in (1, 2))  # -> GG102
    assert [one["loss"].item() for one in out] == [3.0, 6.0]


def test_nested_containers():
    out = Parallel(n_jobs=2)(delayed(nested)(k) for k in (1, 2))  # -> GG102
    assert out[1]["epochs"][0][1]["losses"][0].item() == 6.0


def test_namedtuple():
    out = Parallel(n_jobs=2)(delayed(in_namedtuple)(k) for k in (1, 2))  # -> GG102
    assert out[1].value.tolist() == [2.0] * 3


def test_typed_namedtuple():
    out = Parallel(n_jobs=2)(delayed(in_typed_namedtuple)(k) for k in (1, 2))  # -> GG102
    assert out[1].value.tolist() == [2.0] * 3


def test_structseq_of_torch():
    out = Parallel(n_jobs=2)(delayed(largest)(k) for k in (1, 2))  # -> GG102
    assert out[1].values.item() == 2.0


def test_ordered_dict():
    out = Parallel(n_jobs=2)(delayed(in_ordered_dict)(k) for k in (1, 2))  # -> GG102
    assert out[1]["loss"].tolist() == [2.0] * 3


def test_deque():
    out = Parallel(n_jobs=2)(delayed(in_deque)(k) for k in (1, 2))  # -> GG102
    assert out[1][0].tolist() == [2.0] * 3


def test_model_and_live_loss():
    out = Parallel(n_jobs=2)(delayed(model_and_live_loss)(k) for k in (1, 2))  # -> GG102
    model, loss = out[0]
    assert loss.is_leaf
    model(ROWS).sum().backward()
    assert model.weight.grad is not None


def test_history_of_live_losses():
    out = Parallel(n_jobs=2)(delayed(live_losses)(k) for k in (1, 2))  # -> GG102
    assert [len(losses) for losses in out] == [2, 2]


def test_split_into_views():
    out = Parallel(n_jobs=2)(delayed(pieces)(k) for k in (1, 2))  # -> GG102
    assert out[1][1].tolist() == [2.0, 2.0]


def test_parameters_as_one_vector():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(vector)(model) for _ in range(2))  # -> GG102
    assert torch.equal(out[0], vector(model))


def test_gradient_with_create_graph():
    out = Parallel(n_jobs=2)(delayed(gradient_with_graph)(k) for k in (1, 2))  # -> GG102
    assert [grad.tolist() for grad in out] == [[3.0, 3.0], [6.0, 6.0]]


def test_multiple_of_a_shipped_tensor():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert [t.tolist() for t in out] == [[1.0, 1.0], [2.0, 2.0]]


def test_caller_under_no_grad():
    model = nn.Linear(3, 1)
    with torch.no_grad():
        out = Parallel(n_jobs=2)(delayed(model)(ROWS) for _ in range(2))  # -> GG102 GG301
    assert out[0].requires_grad


def test_one_result_of_many():
    out = Parallel(n_jobs=2)(delayed(one_in_many)(k) for k in range(40))  # -> GG102
    assert [k for k, t in enumerate(out) if t.requires_grad] == [37]


def test_thrown_away():
    Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102


def test_half_precision():
    out = Parallel(n_jobs=2)(delayed(live)(k, 3, torch.float16) for k in (1, 2))  # -> GG102
    assert out[0].dtype is torch.float16


def test_complex():
    out = Parallel(n_jobs=2)(delayed(live)(k, 3, torch.complex64) for k in (1, 2))  # -> GG102
    assert out[0].dtype is torch.complex64


def test_scalar():
    out = Parallel(n_jobs=2)(delayed(live_scalar)(k) for k in (1, 2))  # -> GG102
    assert [t.item() for t in out] == [2.0, 4.0]


def test_subclass():
    out = Parallel(n_jobs=2)(delayed(tagged)(k) for k in (1, 2))  # -> GG102
    assert all(type(t) is Tagged and t.requires_grad for t in out)


def test_live_and_detached():
    out = Parallel(n_jobs=2)(delayed(live_and_detached)(k) for k in (1, 2))  # -> GG102
    assert [t.requires_grad for t in out[0]] == [True, False]


def test_dataclass():
    out = Parallel(n_jobs=2)(delayed(in_dataclass)(k) for k in (1, 2))  # -> GG102?
    assert all(one.value.is_leaf for one in out)


def test_simple_namespace():
    out = Parallel(n_jobs=2)(delayed(in_namespace)(k) for k in (1, 2))  # -> GG102?
    assert all(one.value.is_leaf for one in out)


# --- only the way out is at fault ----------------------------------------------------------


def test_shipped_leaf_comes_back():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(same)(t) for t in (x, x * 2))  # -> GG101
    assert all(t.is_leaf and t.requires_grad for t in out)


def test_worker_under_no_grad():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(sum_without_grad)(x) for _ in range(2))  # -> GG101
    assert not any(t.requires_grad for t in out)


def test_worker_in_inference_mode():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(sum_in_inference)(x) for _ in range(2))  # -> GG101
    assert not any(t.requires_grad for t in out)


def test_worker_detaches():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(detached_sum)(x) for _ in range(2))  # -> GG101
    assert not any(t.requires_grad for t in out)


def test_worker_returns_numbers():
    x = torch.ones(2, requires_grad=True)
    assert Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2)) == [4.0, 4.0]  # -> GG101


def test_gradient_of_a_shipped_tensor():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(gradient_of)(x * k) for k in (1, 2))  # -> GG101
    assert [grad.tolist() for grad in out] == [[2.0, 2.0], [4.0, 4.0]]


# --- nothing to report ---------------------------------------------------------------------


def test_leaf_made_by_the_worker():
    out = Parallel(n_jobs=2)(delayed(own_leaf)(k) for k in (1, 2))
    (out[0] * out[1]).sum().backward()
    assert out[0].grad.tolist() == [2.0] * 3


def test_trained_model():
    models = Parallel(n_jobs=2)(delayed(trained_model)(k) for k in (1, 2))
    assert all(p.requires_grad for model in models for p in model.parameters())


def test_trained_model_is_trained_further():
    models = Parallel(n_jobs=2)(delayed(trained_model)(k) for k in (1, 2))
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        before = model.weight.detach().clone()
        ((model(ROWS) - TARGETS) ** 2).mean().backward()
        optimizer.step()
        assert not torch.equal(before, model.weight)


def test_trained_model_and_its_optimizer():
    for model, optimizer in Parallel(n_jobs=2)(delayed(model_and_optimizer)(k) for k in (1, 2)):
        before = model.weight.detach().clone()
        model(ROWS).sum().backward()
        optimizer.step()
        assert not torch.equal(before, model.weight)


def test_model_with_loss_value():
    out = Parallel(n_jobs=2)(delayed(model_and_loss_value)(k) for k in (1, 2))
    assert all(one["loss"] == one["history"][0].item() for one in out)


def test_state_dict():
    model = nn.Linear(3, 1)
    for state in Parallel(n_jobs=2)(delayed(trained_state)(k) for k in (1, 2)):
        model.load_state_dict(state)
    model(ROWS).sum().backward()
    assert model.weight.grad is not None


def test_state_dict_with_parameters():
    states = Parallel(n_jobs=2)(delayed(trained_state)(k, keep_vars=True) for k in (1, 2))
    assert all(type(state["weight"]) is nn.Parameter for state in states)


def test_parameters():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(parameters)(model) for _ in range(2))
    assert torch.equal(out[0][0], model.weight)


def test_gradients_of_parameters():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(gradients)(model, rows) for rows in ROWS.split(2))
    for p, *parts in zip(model.parameters(), *out, strict=True):
        p.grad = sum(parts)
    summed = [p.grad.clone() for p in model.parameters()]
    for mine, theirs in zip(gradients(model, ROWS), summed, strict=True):
        assert torch.allclose(mine, theirs)


def test_gradients_by_autograd_grad():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    out = Parallel(n_jobs=2)(delayed(gradients_by_grad)(model, rows) for rows in ROWS.split(2))
    for p, *parts in zip(model.parameters(), *out, strict=True):
        p.grad = torch.stack(parts).sum(0)
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_model_without_result():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(backward_only)(model, rows) for rows in ROWS.split(2))
    assert out == [None, None]
    assert model.weight.grad is None


def test_item():
    assert Parallel(n_jobs=2)(delayed(number)(torch.ones(k)) for k in (1, 2)) == [2.0, 4.0]


def test_numpy():
    out = Parallel(n_jobs=2)(delayed(array)(k) for k in (1, 2))
    assert np.stack(out).sum() == 9.0


def test_detached_tensor():
    out = Parallel(n_jobs=2)(delayed(detached_sum)(torch.ones(k)) for k in (1, 2))
    w = torch.tensor(1.0, requires_grad=True)
    (torch.stack(out).sum() * w).backward()
    assert w.grad.item() == 6.0


def detached_dictionary(k):
    return {"loss": live(k).detach().clone(), "k": k}


def test_detached_clone_in_dictionary():
    out = Parallel(n_jobs=2)(delayed(detached_dictionary)(k) for k in (1, 2))
    assert not any(one["loss"].requires_grad for one in out)


def test_indices():
    out = Parallel(n_jobs=2)(delayed(order)(k) for k in (1, 2))
    assert all(t.dtype is torch.int64 for t in out)


def test_optimizer_state():
    out = Parallel(n_jobs=2)(delayed(trained_optimizer_state)(k) for k in (1, 2))
    assert all("param_groups" in state for state in out)


def test_model_that_keeps_its_last_loss():
    out = Parallel(n_jobs=2)(delayed(remembering)(k) for k in (1, 2))
    assert all(model.last_loss.is_leaf for model in out)


def test_estimator_that_keeps_its_last_loss():
    out = Parallel(n_jobs=2)(delayed(fitted)(k) for k in (1, 2))
    assert all(estimator.loss_.is_leaf for estimator in out)


def test_plain_object_with_a_live_tensor():
    out = Parallel(n_jobs=2)(delayed(in_box)(k) for k in (1, 2))
    assert all(box.value.is_leaf for box in out)


def test_list_of_estimators():
    out = Parallel(n_jobs=2)(delayed(fitted_list)(k) for k in (1, 2))
    assert len(out[1][1].losses_) == 3


def test_copied_model():
    model = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(copied)(model) for _ in range(2))
    out[0](ROWS).sum().backward()
    assert out[0].weight.grad is not None
    assert model.weight.grad is None


def test_none():
    assert Parallel(n_jobs=2)(delayed(nothing)(k) for k in (1, 2)) == [None, None]


def test_average_of_models():
    models = Parallel(n_jobs=2)(delayed(trained_model)(k) for k in (1, 2))
    mean = nn.Linear(3, 1)
    with torch.no_grad():
        mean.weight.copy_(torch.stack([model.weight for model in models]).mean(0))
    mean(ROWS).sum().backward()
    assert mean.weight.grad is not None
