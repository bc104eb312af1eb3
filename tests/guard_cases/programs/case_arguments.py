"""Tensors given to loky workers as arguments, in the forms that programs give them.

GG101 is for a tensor that requires grad, leaf or with history, and is no parameter. Everything
else that crosses here is legitimate.
"""

import collections
import dataclasses
import typing

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn
from torch.nn.utils import prune

DETAILS = {
    "test_leaf": {
        "GG101": {
            "direction": "argument",
            "object": "args[0]",
            "shape": [3],
            "dtype": "float32",
            "device": "cpu",
            "backend": "loky",
            "framework": "torch",
        }
    },
    "test_history": {"GG101": {"object": "args[0]", "shape": [2, 3], "dtype": "float32"}},
    "test_keyword": {"GG101": {"direction": "argument", "object": "kwargs['w']", "shape": [3]}},
    "test_second_argument_only": {"GG101": {"object": "args[1]", "shape": [4]}},
    "test_list_of_tensors": {"GG101": {"object": "args[0][1]", "shape": [2]}},
    "test_tuple_in_dict_in_list": {"GG101": {"object": "args[0][0]['pair'][1]", "shape": [5]}},
    "test_dataclass": {"GG101": {"object": "args[0].weight", "shape": [3]}},
    "test_plain_object_in_object": {"GG101": {"object": "args[0].inner.weight", "shape": [3]}},
    "test_complex": {"GG101": {"dtype": "complex64"}},
    "test_half": {"GG101": {"dtype": "float16"}},
    "test_bfloat16": {"GG101": {"dtype": "bfloat16"}},
    "test_double": {"GG101": {"dtype": "float64"}},
    "test_zero_dim": {"GG101": {"shape": []}},
    "test_empty": {"GG101": {"shape": [0, 4]}},
    "test_module_with_tensor_attribute": {"GG101": {"object": "args[0].scale", "shape": [1]}},
    "test_slice": {"GG101": {"shape": [2]}},
}


def total(value, factor=1.0, w=None):
    """The sum of every tensor or number in `value`, as a float."""
    if w is not None:
        return float(w.detach().sum()) + total(value, factor)
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return float(dense.abs().double().sum()) * factor
    if isinstance(value, np.ndarray):
        return sum(total(item, factor) for item in value.ravel())
    if isinstance(value, dict):
        return sum(total(item, factor) for item in value.values())
    if isinstance(value, (list, tuple, set, collections.deque)):
        return sum(total(item, factor) for item in value)
    if isinstance(value, (int, float, np.number)):
        return float(value) * factor
    return 0.0


def second(a, b):
    return float(b.detach().sum()) + a


def weight_of(holder):
    return float(holder.weight.detach().sum())


def inner_weight_of(holder):
    return float(holder.inner.weight.detach().sum())


def requires_grad_of(tensor):
    return tensor.requires_grad, tensor.is_leaf


def forward(module, rows):
    with torch.no_grad():
        return float(module(rows).sum())


def groups(optimizer):
    return len(optimizer.param_groups[0]["params"])


def count(items):
    return len(list(items))


Point = collections.namedtuple("Point", ["name", "weight"])


class TypedPoint(typing.NamedTuple):
    name: str
    weight: torch.Tensor


@dataclasses.dataclass
class Layer:
    name: str
    weight: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenLayer:
    name: str
    weight: torch.Tensor


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


class Holder:
    def __init__(self, weight):
        self.weight = weight


class Outer:
    def __init__(self, weight):
        self.inner = Holder(weight)


class Rebuilt:
    def __init__(self, weight):
        self.weight = weight

    def __reduce__(self):
        return Rebuilt, (self.weight,)


class Forgetful:
    """Keeps a tensor for the parent alone: pickling leaves it out."""

    def __init__(self, size):
        self.size = size
        self.weight = torch.ones(size, requires_grad=True)

    def __getstate__(self):
        return {"size": self.size}


class Detaching:
    def __init__(self, weight):
        self.weight = weight

    def __getstate__(self):
        return {"weight": self.weight.detach()}


class Recipe:
    """Pickled as the recipe to make it again."""

    def __init__(self, size):
        self.size = size
        self.weight = torch.ones(size, requires_grad=True) * 2

    def __reduce__(self):
        return Recipe, (self.size,)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, rows):
        return self.linear(rows) * self.scale


class Buffered(nn.Module):
    def __init__(self, requires_grad):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("offset", torch.zeros(1, requires_grad=requires_grad))

    def forward(self, rows):
        return self.linear(rows) + self.offset


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.last = None

    def forward(self, rows):
        self.last = self.linear(rows)
        return self.last


class Tagged(torch.Tensor):
    pass


class Watching(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def leaf(*shape, **options):
    return torch.ones(*shape, requires_grad=True, **options)


# --- tensors that require grad -------------------------------------------------------------


def test_leaf():
    x = leaf(3)
    out = Parallel(n_jobs=2)(delayed(total)(x, k) for k in range(2))  # -> GG101
    assert out == [0.0, 3.0]


def test_history():
    x = leaf(2, 3)
    out = Parallel(n_jobs=2)(delayed(requires_grad_of)(x * 2) for _ in range(2))  # -> GG101
    assert out == [(True, True)] * 2


def test_history_of_a_parameter():
    model = nn.Linear(3, 1)
    hidden = model(torch.ones(2, 3))
    out = Parallel(n_jobs=2)(delayed(requires_grad_of)(row) for row in hidden)  # -> GG101
    assert out == [(True, True)] * 2


def test_keyword():
    w = leaf(3)
    out = Parallel(n_jobs=2)(delayed(total)(k, w=w) for k in range(2))  # -> GG101
    assert out == [3.0, 4.0]


def test_second_argument_only():
    w = leaf(4)
    out = Parallel(n_jobs=2)(delayed(second)(k, w) for k in range(2))  # -> GG101
    assert out == [4.0, 5.0]


def test_list_of_tensors():
    pair = [torch.ones(2), leaf(2)]
    out = Parallel(n_jobs=2)(delayed(total)(pair) for _ in range(2))  # -> GG101
    assert out == [4.0, 4.0]


def test_tuple_in_dict_in_list():
    nested = [{"pair": (1, leaf(5))}]
    out = Parallel(n_jobs=2)(delayed(total)(nested) for _ in range(2))  # -> GG101
    assert out == [6.0, 6.0]


def test_twenty_levels_deep():
    nested = leaf(3) * 2
    for level in range(20):
        nested = [nested] if level % 2 else {"next": nested}
    out = Parallel(n_jobs=2)(delayed(total)(nested) for _ in range(2))  # -> GG101
    assert out == [6.0, 6.0]


def test_ordered_dict_and_defaultdict():
    weights = collections.OrderedDict(a=torch.ones(2), b=collections.defaultdict(list))
    weights["b"]["deep"].append(leaf(2))
    out = Parallel(n_jobs=2)(delayed(total)(weights) for _ in range(2))  # -> GG101
    assert out == [4.0, 4.0]


def test_deque():
    history = collections.deque([leaf(2), torch.zeros(2)], maxlen=4)
    out = Parallel(n_jobs=2)(delayed(total)(history) for _ in range(2))  # -> GG101
    assert out == [2.0, 2.0]


def test_set():
    out = Parallel(n_jobs=2)(delayed(total)({leaf(2)}) for _ in range(2))  # -> GG101
    assert out == [2.0, 2.0]


def test_namedtuple():
    point = Point("a", leaf(2))
    out = Parallel(n_jobs=2)(delayed(weight_of)(point) for _ in range(2))  # -> GG101
    assert out == [2.0, 2.0]


def test_typed_namedtuple():
    points = [TypedPoint("a", torch.ones(2)), TypedPoint("b", leaf(2) + 1)]
    out = Parallel(n_jobs=2)(delayed(weight_of)(point) for point in points)  # -> GG101
    assert out == [2.0, 4.0]


def test_dataclass():
    layer = Layer("a", leaf(3))
    out = Parallel(n_jobs=2)(delayed(weight_of)(layer) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]


def test_frozen_slots_dataclass():
    layer = FrozenLayer("a", leaf(3))
    out = Parallel(n_jobs=2)(delayed(weight_of)(layer) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]


def test_object_with_slots():
    holder = Slotted(leaf(3))
    out = Parallel(n_jobs=2)(delayed(weight_of)(holder) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]


def test_plain_object_in_object():
    holder = Outer(leaf(3))
    out = Parallel(n_jobs=2)(delayed(inner_weight_of)(holder) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]


def test_object_with_own_reduce():
    holder = Rebuilt(leaf(3))
    out = Parallel(n_jobs=2)(delayed(weight_of)(holder) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]


def test_object_array():
    cells = np.empty(2, dtype=object)
    cells[0], cells[1] = 1.0, leaf(3)
    out = Parallel(n_jobs=2)(delayed(total)(cells) for _ in range(2))  # -> GG101
    assert out == [4.0, 4.0]


def test_only_one_task_of_many():
    items = [torch.ones(2) for _ in range(40)]
    items[33] = leaf(2)
    out = Parallel(n_jobs=2)(delayed(total)(item) for item in items)  # -> GG101
    assert out == [2.0] * 40


def test_same_tensor_for_every_task():
    x = leaf(2)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(30))  # -> GG101
    assert out == [2.0] * 30


def test_tuples_instead_of_delayed():
    x = leaf(2)
    out = Parallel(n_jobs=2)([(total, (x,), {"factor": k}) for k in range(2)])  # -> GG101
    assert out == [0.0, 2.0]


def test_two_calls_two_lines():
    x = leaf(2)
    first = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    clean = Parallel(n_jobs=2)(delayed(total)(x.detach()) for _ in range(2))
    again = Parallel(n_jobs=2)(delayed(total)(x * 1) for _ in range(2))  # -> GG101
    assert first == clean == again == [2.0, 2.0]


def test_module_with_tensor_attribute():
    model = Scaled()
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))  # -> GG101
    assert out == [forward(model, rows)] * 2


def test_module_with_buffer_that_requires_grad():
    model = Buffered(requires_grad=True)
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))  # -> GG101
    assert out == [forward(model, rows)] * 2


def test_module_that_keeps_its_last_output():
    model = Remembering()
    rows = torch.ones(2, 3)
    model(rows)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))  # -> GG101
    assert out == [forward(model, rows)] * 2


def test_optimizer_over_a_plain_tensor():
    optimizer = torch.optim.SGD([leaf(2)], lr=0.1)
    out = Parallel(n_jobs=2)(delayed(groups)(optimizer) for _ in range(2))  # -> GG101
    assert out == [1, 1]


def test_slice():
    x = leaf(6)
    out = Parallel(n_jobs=2)(delayed(total)(x[k : k + 2]) for k in (0, 2, 4))  # -> GG101
    assert out == [2.0] * 3


def test_expanded():
    x = leaf(1)
    out = Parallel(n_jobs=2)(delayed(total)(x.expand(4)) for _ in range(2))  # -> GG101
    assert out == [4.0] * 2


def test_transposed_view():
    x = leaf(2, 3)
    out = Parallel(n_jobs=2)(delayed(total)(x.t()) for _ in range(2))  # -> GG101
    assert out == [6.0] * 2


def test_complex():
    x = leaf(2, dtype=torch.complex64)
    out = Parallel(n_jobs=2)(delayed(requires_grad_of)(x) for _ in range(2))  # -> GG101
    assert out == [(True, True)] * 2


def test_half():
    x = leaf(2, dtype=torch.float16)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [2.0] * 2


def test_bfloat16():
    x = leaf(2, dtype=torch.bfloat16)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [2.0] * 2


def test_double():
    x = leaf(2, dtype=torch.float64)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [2.0] * 2


def test_zero_dim():
    x = torch.tensor(2.0, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [2.0] * 2


def test_empty():
    x = leaf(0, 4)
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [0.0] * 2


def test_sparse():
    x = torch.eye(3).to_sparse().requires_grad_()
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [3.0] * 2


def test_view_of_a_parameter():
    weight = nn.Parameter(torch.ones(2, 2))
    out = Parallel(n_jobs=2)(delayed(total)(weight.view(-1)) for _ in range(2))  # -> GG101
    assert out == [4.0] * 2


def test_subclass():
    x = torch.ones(3).as_subclass(Tagged).requires_grad_()
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [3.0] * 2


def test_subclass_with_torch_function():
    x = torch.ones(3).as_subclass(Watching).requires_grad_()
    out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [3.0] * 2


def test_tensor_with_attributes():
    x = leaf(3)
    x.label = "weights"
    out = Parallel(n_jobs=2)(delayed(getattr)(x, "label") for _ in range(2))  # -> GG101
    assert out == ["weights"] * 2


def test_leaf_under_no_grad():
    x = leaf(3)
    with torch.no_grad():
        out = Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2))  # -> GG101
    assert out == [3.0] * 2


# --- attributes of modules that are tensors with history --------------------------------------


ROW = torch.ones(1, 3)


def infer(model, row=ROW):
    with torch.no_grad():
        return model(row)


def inferred(model):
    with torch.no_grad():
        expected = model(ROW)
    found = Parallel(n_jobs=2)(delayed(infer)(model) for _ in range(2))
    assert torch.equal(found[0], expected)


class Rescaled(nn.Linear):
    """A hook computes `scaled` anew before each forward."""

    def __init__(self):
        super().__init__(3, 1)
        self.register_forward_pre_hook(scale)
        scale(self, None)

    def forward(self, row):
        return row @ self.scaled.T


def scale(module, inputs):
    module.scaled = module.weight * 2


def test_features_beside_weight_norm():
    model = nn.utils.weight_norm(nn.Linear(3, 3))
    Parallel(n_jobs=2)(delayed(infer)(model, model(ROW)) for _ in range(2))  # -> GG101


def test_attribute_computed_once():
    model = nn.Linear(3, 1)
    model.scaled = model.weight * 2
    Parallel(n_jobs=2)(delayed(infer)(model) for _ in range(2))  # -> GG101


def test_attribute_of_another_name_than_the_hook():
    model = Rescaled()
    model.kept = model.weight * 3
    Parallel(n_jobs=2)(delayed(infer)(model) for _ in range(2))  # -> GG101


def test_weight_norm():
    inferred(nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), nn.ReLU()))


def test_spectral_norm():
    model = nn.utils.spectral_norm(nn.Linear(3, 1))
    model(ROW)
    inferred(model.eval())


def test_pruned():
    inferred(prune.random_unstructured(nn.Linear(3, 1), "weight", 0.5))


def test_recurrent_weight_norm():
    model = nn.utils.weight_norm(nn.LSTM(3, 2), "weight_hh_l0")
    found = Parallel(n_jobs=2)(delayed(infer)(model) for _ in range(2))
    assert torch.equal(found[0][0], model(ROW)[0])


def test_weight_of_a_hook_of_its_own():
    inferred(Rescaled())


# --- nothing to report ---------------------------------------------------------------------


def test_plain_tensors():
    rows = torch.arange(6.0).reshape(2, 3)
    assert Parallel(n_jobs=2)(delayed(total)(row) for row in rows) == [3.0, 12.0]


def test_detached():
    x = leaf(3)
    y = x * 2
    assert Parallel(n_jobs=2)(delayed(total)(t.detach()) for t in (x, y)) == [3.0, 6.0]


def test_data():
    x = leaf(3)
    assert Parallel(n_jobs=2)(delayed(total)(x.data) for _ in range(2)) == [3.0, 3.0]


def test_numpy_of_it():
    x = leaf(3)
    arrays = [x.detach().numpy(), (x * 2).detach().numpy()]
    assert Parallel(n_jobs=2)(delayed(total)(array) for array in arrays) == [3.0, 6.0]


def test_item_and_tolist():
    x = leaf(3)
    out = Parallel(n_jobs=2)(delayed(total)([x.sum().item(), x.tolist()]) for _ in range(2))
    assert out == [6.0, 6.0]


def test_made_under_no_grad():
    x = leaf(3)
    with torch.no_grad():
        y = x * 2
    assert Parallel(n_jobs=2)(delayed(total)(y) for _ in range(2)) == [6.0, 6.0]


def test_requires_grad_switched_off():
    x = leaf(3)
    x.requires_grad_(False)
    assert Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2)) == [3.0, 3.0]


def test_integer_tensor():
    index = torch.tensor([1, 2, 3])
    assert Parallel(n_jobs=2)(delayed(total)(index) for _ in range(2)) == [6.0, 6.0]


def test_state_dict():
    state = nn.Linear(3, 1).state_dict()
    out = Parallel(n_jobs=2)(delayed(count)(state) for _ in range(2))
    assert out == [2, 2]


def test_module():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out == [forward(model, rows)] * 2


def test_module_with_plain_buffers():
    model = nn.Sequential(Buffered(requires_grad=False), nn.BatchNorm1d(1)).eval()
    rows = torch.ones(2, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out == [forward(model, rows)] * 2


def first_output(module, rows):
    with torch.no_grad():
        return module(rows)[0].tolist()


def test_recurrent_module():
    model = nn.LSTM(3, 2)
    rows = torch.ones(4, 1, 3)
    out = Parallel(n_jobs=2)(delayed(first_output)(model, rows) for _ in range(2))
    assert out[0] == out[1]


def test_shared_module_for_every_task():
    model = nn.Linear(3, 1)
    rows = torch.ones(20, 3)
    out = Parallel(n_jobs=2)(delayed(forward)(model, row) for row in rows)
    assert len(out) == 20


def test_parameter():
    weight = nn.Parameter(torch.ones(3))
    assert Parallel(n_jobs=2)(delayed(total)(weight) for _ in range(2)) == [3.0, 3.0]


def test_parameter_of_a_subclass():
    weight = nn.Parameter(torch.ones(3).as_subclass(Tagged))
    assert isinstance(weight, nn.Parameter)
    assert Parallel(n_jobs=2)(delayed(total)(weight) for _ in range(2)) == [3.0, 3.0]


def test_parameter_list_and_dict():
    weights = nn.ParameterList([torch.ones(2), torch.ones(3)])
    named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
    out = Parallel(n_jobs=2)(delayed(count)(group) for group in (weights, named))
    assert out == [2, 1]


def test_list_of_parameters():
    weights = list(nn.Linear(3, 2).parameters())
    out = Parallel(n_jobs=2)(delayed(count)(weights) for _ in range(2))
    assert out == [2, 2]


def test_optimizer_over_parameters():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert Parallel(n_jobs=2)(delayed(groups)(optimizer) for _ in range(2)) == [2, 2]


def test_module_after_backward():
    model = nn.Linear(3, 1)
    rows = torch.ones(2, 3)
    model(rows).sum().backward()
    out = Parallel(n_jobs=2)(delayed(forward)(model, rows) for _ in range(2))
    assert out == [forward(model, rows)] * 2
    assert model.weight.grad is not None


def test_getstate_leaves_the_tensor_out():
    holder = Forgetful(3)
    assert Parallel(n_jobs=2)(delayed(hasattr)(holder, "weight") for _ in range(2)) == [False] * 2


def test_getstate_detaches():
    holder = Detaching(leaf(3))
    assert Parallel(n_jobs=2)(delayed(weight_of)(holder) for _ in range(2)) == [3.0, 3.0]


def test_reduce_makes_it_anew():
    holder = Recipe(3)
    assert Parallel(n_jobs=2)(delayed(weight_of)(holder) for _ in range(2)) == [6.0, 6.0]


def test_caller_merely_owns_one():
    x = leaf(3)
    sizes = Parallel(n_jobs=2)(delayed(total)(k) for k in range(3))
    (x * sum(sizes)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_sequential_after_parallel():
    x = leaf(2)
    assert Parallel(n_jobs=2)(delayed(total)(k) for k in range(2)) == [0.0, 1.0]
    assert Parallel(n_jobs=1)(delayed(total)(x) for _ in range(2)) == [2.0, 2.0]


def test_no_tasks():
    x = leaf(2)
    assert Parallel(n_jobs=2)(delayed(total)(x) for _ in range(0)) == []
