"""Programs whose backward runs, and yet leaves nothing, or nothing good, in `.grad`.

Among them those that lose a gradient which was there: they ask `why_no_grad`, as a watch is content
with a gradient that has arrived.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from losing_programs import FIRST, SECOND, Two, batch, loses
from torch import nn
from torch.nn import functional as F

from pytest_gradguard import watch_gradients, why_no_grad

# -- asked for others, or not given ------------------------------------------------------------


@loses("not-asked", *FIRST)
def inputs_named() -> None:
    model = Two()
    with watch_gradients(model):
        model(batch()).sum().backward(inputs=list(model.second.parameters()))  # <- here


@loses("not-asked", *SECOND)
def autograd_grad_of_some() -> None:
    model = Two()
    with watch_gradients(model):
        torch.autograd.grad(model(batch()).sum(), list(model.first.parameters()))  # <- here


@loses("not-asked", *FIRST, *SECOND)
def an_attack_on_the_input() -> None:
    model = Two(torch.tanh)
    x = batch()
    x.requires_grad_()
    with watch_gradients(model):
        loss = F.mse_loss(model(x), torch.zeros(2, 1))
        torch.autograd.backward([loss], inputs=[x])  # <- here
        x.data.add_(x.grad.sign(), alpha=0.1)


@loses("not-asked", *FIRST)
def a_penalty_whose_gradient_goes_to_the_head() -> None:
    model = Two(torch.tanh)
    x = batch().requires_grad_()
    with watch_gradients({"first": model.first, "second": model.second}):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean() + model(x).mean()
        head = list(model.second.parameters())
        for p, gradient in zip(
            head,
            torch.autograd.grad(penalty, head),
            strict=True,
        ):
            p.grad = gradient


@loses("not-in-graph", "second.bias")
def a_bias_that_no_slope_depends_on() -> None:
    model = Two(torch.tanh)
    x = batch().requires_grad_()
    with watch_gradients(model):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()  # <- here


@loses("not-asked", *FIRST, *SECOND)
def a_product_with_the_jacobian_of_the_input() -> None:
    model = Two(torch.sigmoid)
    with watch_gradients(model):
        _, product = torch.func.vjp(model, batch())
        product(torch.ones(2, 1))  # <- here


@loses("not-asked", *FIRST, *SECOND)
def a_jacobian_of_the_input() -> None:
    model = Two(torch.sigmoid)
    with watch_gradients(model):
        torch.autograd.functional.jacobian(model, batch())  # <- here


class OneSided(torch.autograd.Function):
    """A product whose backward forgets its second factor."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


@loses("not-produced", "w")
def a_function_that_gives_none() -> None:
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    with watch_gradients({"x": x, "w": w}):
        OneSided.apply(x, w).sum().backward()  # <- here


class Rounded(torch.autograd.Function):
    """Rounds to multiples of a step, straight through for the values."""

    @staticmethod
    def forward(ctx: Any, x: Any, size: Any) -> Any:
        return (x / size).round() * size

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


@loses("not-produced", "quantizer.size")
def a_quantizer_with_a_learned_step() -> None:
    class Quantizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = nn.Parameter(torch.tensor(0.25))

        def forward(self, x: Any) -> Any:
            return Rounded.apply(x, self.size)

    model = nn.Sequential()
    model.add_module("layer", nn.Linear(3, 2))
    model.add_module("quantizer", Quantizer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_gradients(model):
        for _ in range(2):
            optimizer.zero_grad()
            model(batch()).square().mean().backward()  # <- here
            optimizer.step()


class Split(torch.autograd.Function):
    """Two outputs of two inputs; an output that nobody uses gives no gradient."""

    @staticmethod
    def forward(ctx: Any, left: Any, right: Any) -> Any:
        ctx.set_materialize_grads(False)
        return left * 2, right * 3

    @staticmethod
    def backward(ctx: Any, left: Any, right: Any) -> Any:
        return (None if left is None else left * 2), (None if right is None else right * 3)


@loses("not-produced", "right")
def an_output_that_nobody_uses() -> None:
    left, right = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with watch_gradients({"left": left, "right": right}):
        first, _ = Split.apply(left, right)
        loss = first.pow(2).sum()
        loss.backward()  # <- here


class Barrier(torch.autograd.Function):
    """The identity, through which no gradient comes."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> None:
        return None


@loses("not-produced", *FIRST)
def a_barrier_between_two_layers() -> None:
    model = Two(Barrier.apply)
    with watch_gradients(model):
        F.mse_loss(model(batch()), torch.ones(2, 1)).backward()  # <- here


# -- dtypes and values -------------------------------------------------------------------------


@loses("integer-dtype", "indices")
def an_integer_tensor() -> None:
    indices, w = torch.arange(3), torch.ones(3, requires_grad=True)
    with watch_gradients({"indices": indices, "w": w}):
        w[indices].sum().backward()


@loses("integer-dtype", "weight")
def quantized_weights() -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table = torch.tensor([[1, -2, 3]], dtype=torch.int8)
            self.weight = nn.Parameter(table, requires_grad=False)
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, x: Any) -> Any:
            return F.linear(x, self.weight.float() * self.scale)

    model = Quantized()
    with watch_gradients(model):
        model(batch()).mean().backward()


@loses("integer-dtype", "images")
def images_in_bytes() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(1, 1, 4, 6)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(1))
    with watch_gradients({"images": images, "network": network}):
        network(images / 255).sum().backward()


@loses("integer-dtype", "1")
def a_mask_of_booleans() -> None:
    scores, keep = nn.Parameter(torch.zeros(4)), torch.tensor([True, False, True, True])
    with watch_gradients([scores, keep]):
        scores.masked_fill(~keep, -1e9).softmax(0)[0].backward()


@loses("not-finite", "w")
def a_root_of_zero() -> None:
    w = torch.zeros(3, requires_grad=True)
    with watch_gradients({"w": w}):
        w.sqrt().sum().backward()  # <- here


@loses("not-finite", *FIRST, *SECOND)
def a_nan_in_the_batch() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_gradients(model):
        (model(batch()) * math.nan).sum().backward()  # <- here
        optimizer.step()
        optimizer.zero_grad()


@loses("not-finite", "w")
def a_logarithm_behind_a_where() -> None:
    w = torch.tensor([0.0, 0.5, 2.0], requires_grad=True)
    with watch_gradients({"w": w}):
        entropy = torch.where(w > 0, w * w.log(), torch.zeros(()))
        (gradient,) = torch.autograd.grad(entropy.sum(), [w])  # <- here
    assert gradient is not None


@loses("not-finite", "left.weight", "right.weight")
def the_distance_of_equal_things() -> None:
    towers = nn.ModuleDict({name: nn.Linear(3, 2, bias=False) for name in ("left", "right")})
    towers["right"].load_state_dict(towers["left"].state_dict())
    with watch_gradients(towers):
        apart = towers["left"](batch()) - towers["right"](batch())
        distance = apart.square().sum(1).sqrt()
        distance.mean().backward()  # <- here


@loses("not-finite", "logit")
def an_exponential_that_overflows() -> None:
    logit = nn.Parameter(torch.tensor([100.0]))
    optimizer = torch.optim.SGD([logit], lr=1e-3)
    with watch_gradients({"logit": logit}):
        optimizer.zero_grad()
        torch.exp(logit).sum().backward()  # <- here


@loses("all-zero", "w")
def a_dead_relu() -> None:
    w = torch.full((3,), -1.0, requires_grad=True)
    with watch_gradients({"w": w}, nonzero=True):
        w.relu().sum().backward()  # <- here


@loses("all-zero", *FIRST)
def a_saturated_gate() -> None:
    model = Two(torch.sigmoid)
    nn.init.zeros_(model.first.weight)
    nn.init.constant_(model.first.bias, 500.0)
    with watch_gradients(model, nonzero=True):
        model(batch()).square().sum().backward()  # <- here


@loses("all-zero", *FIRST, *SECOND)
def a_loss_masked_away() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    padding = torch.zeros(2, 1)
    with watch_gradients(model, nonzero=True):
        for _ in range(2):
            losses = F.mse_loss(model(batch()), torch.ones(2, 1), reduction="none")
            (losses * padding).sum().backward()  # <- here
            optimizer.step()
            optimizer.zero_grad()


@loses("all-zero", "levels")
def rounded_values() -> None:
    levels, v = nn.Parameter(torch.tensor([0.4, 1.6])), nn.Parameter(torch.ones(2))
    with watch_gradients({"levels": levels, "v": v}, nonzero=True):
        torch.autograd.grad((levels.round() * v).sum(), (levels, v))  # <- here


@loses("not-finite", "weight", "bias")
def a_nan_cleared_in_place() -> None:
    layer = nn.Linear(3, 1)
    with watch_gradients(layer):
        (layer(batch()).sum() * math.nan).backward()  # <- here
        layer.zero_grad(set_to_none=False)


@loses("all-zero", "weight", "bias")
def a_zero_after_a_good_gradient_was_cleared_in_place() -> None:
    layer = nn.Linear(3, 1)
    with watch_gradients(layer, nonzero=True):
        layer(batch()).sum().backward()
        layer.zero_grad(set_to_none=False)
        (layer(batch()).sum() * 0).backward()  # <- here


@loses("not-in-graph", "w")
def an_old_gradient_cleared_in_place() -> None:
    w, v = (nn.Parameter(torch.ones(2)) for _ in range(2))
    (w * v).sum().backward()
    with watch_gradients({"w": w, "v": v}):
        torch.optim.SGD([w, v]).zero_grad(set_to_none=False)
        v.sum().backward()  # <- here


@functools.cache
def distributed() -> Any:
    """Distributed autograd, which runs without an RPC agent for local graphs."""
    module = torch.distributed.autograd
    module._init(0)
    return module


@loses("in-context", *FIRST, *SECOND)
def gradients_in_a_distributed_context() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_gradients(model), distributed().context() as context:
        distributed().backward(context, [model(batch()).sum()])  # <- here
        optimizer.step()


@loses("in-context", "w")
def gradients_in_the_context_of_each_step() -> None:
    w, v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    with watch_gradients({"w": w, "v": v}):
        for factor in (1.0, 2.0):
            with distributed().context() as context:
                distributed().backward(context, [(w * factor).sum()])  # <- here
            v.sum().backward()


@loses("in-context", "w")
def asked_of_a_gradient_in_a_context() -> dict[str, str]:
    w = nn.Parameter(torch.ones(3))
    with watch_gradients({"w": w}), distributed().context() as context:
        loss = (w * w).sum()
        distributed().backward(contextId=context, roots=[loss], retain_graph=True)  # <- here
        return {"w": why_no_grad(w)}


@loses("not-finite", "w")
def asked_of_a_nan() -> dict[str, str]:
    w = nn.Parameter(torch.ones(3))
    (w * math.nan).sum().backward()
    return {"w": why_no_grad(w)}


@loses("all-zero", "w")
def asked_of_a_zero() -> dict[str, str]:
    w = nn.Parameter(-torch.ones(3))
    with watch_gradients({"w": w}):
        w.relu().sum().backward()  # <- here
        return {"w": why_no_grad(w)}


@loses("all-zero", "w")
def asked_of_a_zero_without_a_watch() -> dict[str, str]:
    w = nn.Parameter(-torch.ones(3))
    w.relu().sum().backward()
    return {"w": why_no_grad(w)}


# -- arrived, and cleared ----------------------------------------------------------------------


@loses("cleared", *FIRST, *SECOND)
def an_optimizer_clears_after_its_step() -> dict[str, str]:
    model = Two()
    optimizer = torch.optim.Adam(model.parameters())
    with watch_gradients(model):
        for _ in range(2):
            model(batch()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()  # <- here
        return {name: why_no_grad(p) for name, p in model.named_parameters()}


@loses("cleared", "weight", "bias")
def a_module_clears_in_a_helper() -> dict[str, str]:
    def evaluate(net: Any) -> float:
        net.zero_grad()  # <- here
        with torch.no_grad():
            return float(net(batch()).mean())

    layer = nn.Linear(3, 1)
    with watch_gradients({"layer": layer}):
        F.l1_loss(layer(batch()), torch.zeros(2, 1)).backward()
        evaluate(layer)
        return {"weight": why_no_grad(layer.weight), "bias": why_no_grad(layer.bias)}


@loses("cleared", "w")
def cleared_by_hand() -> dict[str, str]:
    w = torch.ones(3, requires_grad=True)
    with watch_gradients(w):
        (w * 2).sum().backward()  # <- here
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        return {"w": why_no_grad(w)}


@loses("cleared", "w")
def cleared_in_place() -> dict[str, str]:
    w = torch.ones(3, requires_grad=True)
    with watch_gradients(w):
        w.square().sum().backward()
        torch.optim.SGD([w]).zero_grad(set_to_none=False)  # <- here
        return {"w": why_no_grad(w)}


@loses("cleared", "w")
def used_up_in_a_hook() -> dict[str, str]:
    w = nn.Parameter(torch.ones(3))

    def descend(p: Any) -> None:
        p.data.sub_(p.grad, alpha=0.1)
        p.grad = None

    w.register_post_accumulate_grad_hook(descend)
    with watch_gradients([w]):
        w.square().sum().backward()  # <- here
        return {"w": why_no_grad(w)}


# -- what cannot be known ----------------------------------------------------------------------


@loses("unknown", "w")
def asked_without_a_watch() -> dict[str, str]:
    w = nn.Parameter(torch.ones(3))
    w.detach().sum()
    return {"w": why_no_grad(w)}


@loses("unknown", "w")
def a_graph_too_large_to_be_searched() -> None:
    w, v = (nn.Parameter(torch.ones(1)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        total = v * 1
        for _ in range(30_000):
            total = total * 1 + v
        total.sum().backward()


@loses("unknown", "late")
def detached_too_often_to_be_followed() -> None:
    w, v, late = (nn.Parameter(torch.ones(1)) for _ in range(3))
    with watch_gradients({"w": w, "v": v, "late": late}):
        deep = w
        for _ in range(900):
            deep = deep * 1
        kept = []
        for turn in range(100):
            value = deep * late if turn == 90 else deep
            kept.append(value.detach())
        (torch.stack(kept).sum() * v + deep).sum().backward()
