"""Forms that programs really have and that a detector easily trips over.

Library objects that hold tensors, cycles, hostile objects, early imports, other ways to call.
"""

import asyncio
import collections
import copyreg
import pickle
import sys

import joblib.parallel
import numpy as np
import pytest
import torch
from joblib import Parallel, delayed, parallel_config
from torch import nn
from torch.autograd import backward as early_backward
from torch.autograd import grad as early_grad
from torch.utils.data import DataLoader, Subset, TensorDataset

EXPECT = {
    "test_processes_below_a_sequential_call": {"GG101", "GG102"},
    "test_executor_of_asyncio": {"GG101", "GG102"},
    "test_return_in_a_finally": {"GG101"},
}
MAY = {
    "test_live_tensor_in_an_error": {"GG102"},
    "test_distribution_result": {"GG102"},
}

DETAILS = {
    "test_hundred_thousand_items": {"GG101": {"object": "args[0][100000]", "shape": [3]}},
    "test_distribution": {"GG101": {"object": ("args[0].loc", "args[0].scale"), "shape": [3]}},
    "test_cyclic_argument": {"GG101": {"object": "args[0][1]", "shape": [3]}},
    "test_clones_of_named_parameters": {
        "GG101": {"object": ("args[0]['weight']", "args[0]['bias']")}
    },
    "test_self_reference": {"GG101": {"object": "args[0].weight"}},
}


class Node:
    def __init__(self, weight):
        self.parent = self
        self.weight = weight


class Registered:
    def __init__(self, weight):
        self.weight = weight


copyreg.pickle(Registered, lambda item: (Registered, (item.weight,)))


class CountedMapping(collections.OrderedDict):
    calls = 0

    def items(self):
        CountedMapping.calls += 1
        return super().items()

    def __iter__(self):
        CountedMapping.calls += 1
        return super().__iter__()

    def __getitem__(self, key):
        CountedMapping.calls += 1
        return super().__getitem__(key)


class Answering:
    asked = []  # noqa: RUF012

    def __init__(self, weight):
        self.weight = weight

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        Answering.asked.append(name)
        return 1

    def __getstate__(self):
        return {"weight": self.weight}

    def __setstate__(self, state):
        self.__dict__.update(state)


class Raising:
    def __init__(self, weight):
        self.weight = weight

    @property
    def shape(self):
        raise RuntimeError("no shape")

    @property
    def requires_grad(self):
        raise RuntimeError("nothing to tell")

    def __len__(self):
        raise RuntimeError("no length")

    def __iter__(self):
        raise RuntimeError("no items")


class Untrue(Raising):
    def __bool__(self):
        raise ValueError("neither true nor false")

    def __eq__(self, other):
        raise ValueError("cannot be compared")

    __hash__ = None


class TensorError(Exception):
    pass


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.mean = nn.Buffer(torch.zeros(3))

    def forward(self, rows):
        return self.linear(rows - self.mean)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 3)
        self.decode = nn.Linear(3, 3)
        self.decode.weight = self.encode.weight

    def forward(self, rows):
        return self.decode(self.encode(rows))


def leaf(size=3):
    return torch.ones(size, requires_grad=True)


def ignore(*args, **kwargs):
    return len(args) + len(kwargs)


def times(x, k):
    return x * k


def number(x):
    return float(x.detach().sum())


def weight_of(item):
    return number(item.weight)


def size_of(items):
    return len(items)


def first_of(items):
    return number(next(items))


def live(k):
    return torch.ones(3, requires_grad=True) * k


def mean_of(distribution):
    return float(distribution.mean.detach().sum())


def forward(model, rows):
    with torch.no_grad():
        return float(model(rows).sum())


def cyclic(k):
    items = [live(k)]
    items.append(items)
    return items


def in_defaultdict(k):
    found = collections.defaultdict(list)
    found["losses"].append(live(k))
    return found


def packed(k):
    return nn.utils.rnn.pack_sequence([live(k), live(k)[:2]])


def distribution(k):
    return torch.distributions.Normal(live(k), torch.ones(3))


def closure(k):
    y = live(k)
    return lambda: float(y.detach().sum())


def fail(x):
    raise TensorError(x * 2)


def functional(state, rows):
    model = nn.Linear(3, 1)
    with torch.no_grad():
        return float(torch.func.functional_call(model, state, rows).sum())


def inner_call(x):
    return Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102


def draw(generator):
    return torch.rand(1, generator=generator).item()


# --- what holds the tensor -----------------------------------------------------------------


def test_distribution():
    normal = torch.distributions.Normal(leaf(), torch.ones(3, requires_grad=True))
    assert Parallel(n_jobs=2)(delayed(mean_of)(normal) for _ in range(2)) == [3.0, 3.0]  # -> GG101


def test_dataset():
    data = TensorDataset(leaf(4) * 2, torch.ones(4))
    assert Parallel(n_jobs=2)(delayed(size_of)(data) for _ in range(2)) == [4, 4]  # -> GG101


def test_subset_of_a_dataset():
    data = Subset(TensorDataset(leaf(4)), [0, 2])
    assert Parallel(n_jobs=2)(delayed(size_of)(data) for _ in range(2)) == [2, 2]  # -> GG101


def test_clones_of_named_parameters():
    state = {name: p.clone() for name, p in nn.Linear(3, 1).named_parameters()}
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(functional)(state, rows) for _ in range(2))  # -> GG101
    assert out == [functional(state, rows)] * 2


def test_conjugate_view():
    x = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    assert Parallel(n_jobs=2)(delayed(ignore)(x.conj()) for _ in range(2)) == [1, 1]  # -> GG101


def test_sparse_csr():
    x = torch.eye(3).to_sparse_csr().requires_grad_()
    assert Parallel(n_jobs=2)(delayed(ignore)(x) for _ in range(2)) == [1, 1]  # -> GG101


def test_meta_device():
    x = torch.ones(3, device="meta", requires_grad=True)
    assert Parallel(n_jobs=2)(delayed(ignore)(x) for _ in range(2)) == [1, 1]  # -> GG101


def test_iterator_over_tensors():
    rows = iter([leaf(), leaf()])
    assert Parallel(n_jobs=2)([delayed(first_of)(rows)]) == [3.0]  # -> GG101


def test_cyclic_argument():
    items = [1]
    items += [leaf(), items]
    assert Parallel(n_jobs=2)(delayed(size_of)(items) for _ in range(2)) == [3, 3]  # -> GG101


def test_self_reference():
    node = Node(leaf())
    assert Parallel(n_jobs=2)(delayed(weight_of)(node) for _ in range(2)) == [3.0, 3.0]  # -> GG101


def test_hundred_thousand_items():
    items = [*range(100_000), leaf()]
    assert Parallel(n_jobs=2)([delayed(size_of)(items)]) == [100_001]  # -> GG101


def test_reducer_from_copyreg():
    item = Registered(leaf())
    assert Parallel(n_jobs=2)(delayed(weight_of)(item) for _ in range(2)) == [3.0, 3.0]  # -> GG101


def test_mapping_with_side_effects():
    mapping = CountedMapping(a=1, weight=leaf())
    CountedMapping.calls = 0
    pickle.dumps(mapping)
    once = CountedMapping.calls
    CountedMapping.calls = 0
    assert Parallel(n_jobs=2)([delayed(size_of)(mapping)]) == [2]  # -> GG101
    assert CountedMapping.calls == once


def test_object_that_answers_every_name():
    item = Answering(leaf())
    assert Parallel(n_jobs=2)(delayed(weight_of)(item) for _ in range(2)) == [3.0, 3.0]  # -> GG101
    assert Answering.asked == []


def test_object_whose_properties_raise():
    item = {"item": Raising(leaf())}
    out = Parallel(n_jobs=2)(delayed(size_of)(item) for _ in range(2))  # -> GG101
    assert out == [1, 1]


def test_object_without_truth():
    items = [Untrue(1), Untrue(leaf()), np.ones(2)]
    assert Parallel(n_jobs=2)(delayed(size_of)(items) for _ in range(2)) == [3, 3]  # -> GG101


def test_dictionary_key():
    table = {leaf(): "weight"}
    assert Parallel(n_jobs=2)(delayed(size_of)(table) for _ in range(2)) == [1, 1]  # -> GG101


def test_exponential_sharing():
    """Sixty levels that each hold the level below twice: 2**60 paths, sixty objects."""
    nested = leaf()
    for _ in range(60):
        nested = [nested, nested]
    assert Parallel(n_jobs=2)([delayed(size_of)(nested)]) == [2]  # -> GG101


def test_scheduler_over_a_plain_tensor():
    optimizer = torch.optim.SGD([leaf()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    out = Parallel(n_jobs=2)(delayed(ignore)(scheduler) for _ in range(2))  # -> GG101
    assert out == [1, 1]


# --- ways to call --------------------------------------------------------------------------


def test_call_of_the_bound_call():
    run = Parallel(n_jobs=2).__call__
    assert run(delayed(times)(leaf(1), k) for k in (1, 2))[1].tolist() == [2.0]  # -> GG101 GG102


def test_parallel_from_its_module():
    module = joblib.parallel
    out = module.Parallel(2)(module.delayed(times)(leaf(1), k) for k in (1, 2))  # -> GG101 GG102
    assert out[1].tolist() == [2.0]


def test_inner_thread_limit():
    with parallel_config(backend="loky", inner_max_num_threads=1, n_jobs=2):
        out = Parallel()(delayed(times)(leaf(1), k) for k in (1, 2))  # -> GG101 GG102
    assert out[1].tolist() == [2.0]


def test_processes_below_a_sequential_call():
    out = Parallel(n_jobs=1)(delayed(inner_call)(leaf(1) * k) for k in (1, 2))
    assert out[1][1].tolist() == [4.0]


def test_executor_of_asyncio():
    async def main():
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, inner_call, leaf(1))

    assert asyncio.run(main())[1].tolist() == [2.0]


def test_star_expression():
    x = leaf()
    print(*Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2)))  # -> GG101


def test_walrus_and_condition():
    x = leaf()
    if (out := Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))) and out[0]:  # -> GG101
        assert out == [3.0, 3.0]


def call_in_finally(x):
    try:
        return
    finally:
        Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))  # -> GG101


def test_return_in_a_finally():
    assert call_in_finally(leaf()) is None


# --- results -------------------------------------------------------------------------------


def test_cyclic_result():
    out = Parallel(n_jobs=2)(delayed(cyclic)(k) for k in (1, 2))  # -> GG102
    assert out[1][1] is out[1]


def test_defaultdict_result():
    out = Parallel(n_jobs=2)(delayed(in_defaultdict)(k) for k in (1, 2))  # -> GG102
    assert out[1]["losses"][0].is_leaf


def test_packed_sequence_result():
    out = Parallel(n_jobs=2)(delayed(packed)(k) for k in (1, 2))  # -> GG102
    assert out[1].data.is_leaf


def test_distribution_result():
    out = Parallel(n_jobs=2)(delayed(distribution)(k) for k in (1, 2))  # -> GG102?
    assert out[1].loc.is_leaf


def test_closure_result():
    out = Parallel(n_jobs=2)(delayed(closure)(k) for k in (1, 2))
    assert [call() for call in out] == [3.0, 6.0]


def test_live_tensor_in_an_error():
    with pytest.raises(TensorError) as caught:
        Parallel(n_jobs=2)(delayed(fail)(leaf()) for _ in range(2))  # -> GG101 GG102?
    assert caught.value.args[0].tolist() == [2.0] * 3


# --- backward ------------------------------------------------------------------------------


def test_early_grad():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    grads = early_grad(sum(out).sum(), out)
    assert grads[0].tolist() == [1.0] * 3


def test_early_backward():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    early_backward([sum(out).sum()])  # -> GG103:error
    assert x.grad is None


def test_unbound_backward():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    torch.Tensor.backward(sum(out).sum())  # -> GG103:error
    assert x.grad is None


def test_batched_grad():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    (rows,) = torch.autograd.grad(out[0] * 2, out[0], torch.eye(3), is_grads_batched=True)
    assert rows.tolist() == (2 * torch.eye(3)).tolist()


def test_checkpoint_over_results():
    from torch.utils.checkpoint import checkpoint

    head = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    loss = checkpoint(head, torch.stack(out), use_reentrant=True).sum()
    loss.backward()  # -> GG103:warning
    assert head.weight.grad is not None
    assert out[0].grad is not None


def test_own_function_over_results():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    Squared.apply(out[1]).sum().backward()  # -> GG103:warning
    assert out[1].grad.tolist() == [4.0] * 3


def test_scaled_loss():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    scaler.scale(out[0].sum()).backward()  # -> GG103:warning
    assert out[0].grad.tolist() == [4.0] * 3


def test_other_task_got_the_tensor():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(t, live(2)) for t in (x.detach(), x))  # -> GG101 GG102
    out[0].sum().backward()  # -> GG103:error
    assert x.grad is None


def test_only_the_clean_results():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(times)(t, 2) for t in (x.detach(), x))  # -> GG101 GG102
    w = leaf()
    (out[0] * w).sum().backward()
    assert w.grad.tolist() == [2.0] * 3


def test_index_and_gather():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2, 3))  # -> GG102
    picked = torch.stack(out)[[0, 2]].gather(1, torch.tensor([[0], [1]]))
    picked.sum().backward()  # -> GG103:warning
    assert out[2].grad.tolist() == [0.0, 1.0, 0.0]


def test_jacobian_of_others():
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    jacobian = torch.autograd.functional.jacobian(lambda w: w * out[1], torch.ones(3))
    assert jacobian.diagonal().tolist() == [2.0] * 3


def test_backward_under_the_results_detached_stack():
    head = nn.Linear(3, 1)
    out = Parallel(n_jobs=2)(delayed(live)(k) for k in (1, 2))  # -> GG102
    rows = torch.stack([t.detach() for t in out]).requires_grad_()
    head(rows).sum().backward()
    assert rows.grad is not None


# --- nothing to report ---------------------------------------------------------------------


def test_functional_parameters():
    state = dict(nn.Linear(3, 1).named_parameters())
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(functional)(state, rows) for _ in range(2))
    assert out == [functional(state, rows)] * 2


def test_lazy_module():
    model = nn.LazyLinear(2)
    out = Parallel(n_jobs=2)(delayed(ignore)(model) for _ in range(2))
    assert out == [1, 1]
    assert model.has_uninitialized_params()


def test_buffer_objects():
    model = Buffered()
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out == [forward(model, rows)] * 2


def test_dataset_of_data():
    loader = DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4)), batch_size=2)
    assert Parallel(n_jobs=2)(delayed(size_of)(loader) for _ in range(2)) == [2, 2]


def test_distribution_of_data():
    normal = torch.distributions.Normal(leaf().detach(), torch.ones(3))
    assert Parallel(n_jobs=2)(delayed(mean_of)(normal) for _ in range(2)) == [3.0, 3.0]


def test_frozen_module():
    model = nn.Linear(3, 1).requires_grad_(False)
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(model)(rows) for _ in range(2))
    assert not out[0].requires_grad


def note(module, args, output):
    module.calls = getattr(module, "calls", 0) + 1


def test_module_with_hooks():
    model = nn.Linear(3, 1)
    model.register_forward_hook(note)
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert len(out) == 2
    assert not hasattr(model, "calls")


def test_transformer_layer():
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    rows = torch.ones(1, 2, 4)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out[0] == out[1]


def test_tied_weights():
    model = Tied()
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out[0] == out[1]


def test_scheduler():
    optimizer = torch.optim.Adam(nn.Linear(3, 1).parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    assert Parallel(n_jobs=2)(delayed(ignore)(scheduler) for _ in range(2)) == [1, 1]


def test_inference_tensors():
    with torch.inference_mode():
        x = torch.ones(3) * 2
    assert Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2)) == [6.0, 6.0]


def test_generator_objects():
    out = Parallel(n_jobs=2)(delayed(draw)(torch.Generator().manual_seed(k)) for k in (1, 2))
    assert out == [draw(torch.Generator().manual_seed(k)) for k in (1, 2)]


def test_dtype_device_and_size():
    args = (torch.float32, torch.device("cpu"), torch.Size([2, 3]), torch.finfo(torch.half).max)
    assert Parallel(n_jobs=2)(delayed(ignore)(*args) for _ in range(2)) == [4, 4]


def seeded(seed):
    torch.manual_seed(seed)
    return torch.rand(1).item()


def test_random_seeds():
    first = Parallel(n_jobs=2)(delayed(seeded)(k) for k in range(4))
    assert first == Parallel(n_jobs=2)(delayed(seeded)(k) for k in range(4))


def test_masks_and_losses_as_floats():
    losses = [float(live(k).sum()) for k in range(4)]
    mask = torch.tensor(losses) > 2
    out = Parallel(n_jobs=2)(delayed(ignore)(mask, loss) for loss in losses)
    assert out == [2] * 4
    assert "torch" in sys.modules
