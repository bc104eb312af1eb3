"""Programs that lose a gradient, each with the reason, the tensors, and `# <- here` at its line."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from pytest_gradguard import watch_gradients

Run = Callable[[], Any]


class Program(NamedTuple):
    """`run` raises what a watch finds, or returns what `why_no_grad` answers, by name."""

    run: Run
    reason: str
    names: tuple[str, ...]


PROGRAMS: list[Program] = []


def loses(reason: str, *names: str) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        PROGRAMS.append(Program(run, reason, names))
        return run

    return add


class Two(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Any], Any] = lambda h: h) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 1)
        self.between = between

    def forward(self, x: Any) -> Any:
        return self.second(self.between(self.first(x)))


FIRST = ("first.weight", "first.bias")
SECOND = ("second.weight", "second.bias")


def batch() -> Any:
    return torch.linspace(0.5, 2.0, 6).reshape(2, 3)


# -- no backward -------------------------------------------------------------------------------


@loses("never-backward", *FIRST, *SECOND)
def forward_only() -> None:
    model = Two()
    with watch_gradients(model):
        model(batch()).sum()


@loses("never-backward", "w")
def backward_before_the_watch() -> None:
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    with watch_gradients({"w": w}):
        (w * 2).sum()


@loses("never-backward", *FIRST, *SECOND)
def steps_without_backward() -> None:
    model = Two()
    optimizer = torch.optim.Adam(model.parameters())
    with watch_gradients(model):
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(batch()), torch.ones(2, 1))
            optimizer.step()


# -- frozen ------------------------------------------------------------------------------------


@loses("frozen", *FIRST)
def frozen_before() -> None:
    model = Two()
    for parameter in model.first.parameters():
        parameter.requires_grad = False
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("frozen", *SECOND)
def frozen_inside() -> None:
    model = Two()
    with watch_gradients(model):
        model.second.requires_grad_(False)  # <- here
        model(batch()).sum().backward()


@loses("frozen", "bias")
def a_plain_tensor() -> None:
    weight, bias = torch.ones(3, requires_grad=True), torch.zeros(3)
    with watch_gradients({"weight": weight, "bias": bias}):
        (batch() * weight + bias).sum().backward()


# -- not part of the graph ---------------------------------------------------------------------


@loses("not-in-graph", *FIRST)
def a_layer_never_called() -> None:
    model = Two()
    with watch_gradients(model):
        model.second(batch()).sum().backward()  # <- here


@loses("not-in-graph", "aux.weight", "aux.bias")
def an_output_left_out_of_the_loss() -> None:
    model = nn.ModuleDict({"main": nn.Linear(3, 1), "aux": nn.Linear(3, 1)})
    history = []
    with watch_gradients(model):
        main, aux = model["main"](batch()), model["aux"](batch())
        history.append(aux.mean().item())
        print("aux", float(aux.detach().abs().max()))
        loss = main.pow(2).mean()
        loss.backward()  # <- here


@loses("not-in-graph", *FIRST)
def only_validated() -> None:
    model = Two()
    with watch_gradients(model):
        model.eval()
        with torch.no_grad():
            score = model(batch()).mean()
        print("validation", score)
        model.train()
        loss = model.second(batch()).mean()
        loss.backward()  # <- here


@loses("not-in-graph", "0")
def initialised_through_data() -> None:
    unused, used = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with watch_gradients([unused, used]):
        unused.data.normal_(0, 0.1)
        with torch.no_grad():
            unused.mul_(2.0)
        (used * 3).sum().backward()  # <- here


@loses("not-in-graph", "scale")
def decides_only() -> None:
    scale, w = (torch.tensor(2.0, requires_grad=True) for _ in range(2))
    with watch_gradients({"scale": scale, "w": w}):
        loss = w * 3
        if scale.item() > 1:
            loss = loss * 2
        loss.backward()  # <- here


# -- cut by a method ---------------------------------------------------------------------------


@loses("cut", *FIRST)
def detach() -> None:
    model = Two(lambda h: h.detach())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "w")
def detach_among_metrics() -> None:
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    log = {}
    with watch_gradients({"w": w, "v": v}):
        h = (batch() * w).tanh()
        log["mean"] = h.mean().item()
        target = h.sum(0).detach()  # <- here
        loss = (target * v).sum()
        loss.backward()


@loses("cut", *FIRST)
def detach_in_place() -> None:
    model = Two()
    with watch_gradients(model):
        h = model.first(batch())
        h.detach_()  # <- here
        model.second(h).sum().backward()


@loses("cut", *FIRST)
def data() -> None:
    model = Two()
    with watch_gradients(model):
        hidden = model.first(batch()).data  # <- here
        F.mse_loss(model.second(hidden), torch.zeros(2, 1)).backward()


@loses("cut", "w")
def data_of_the_parameter() -> None:
    w = nn.Parameter(torch.ones(3))
    v = nn.Parameter(torch.ones(3))
    with watch_gradients({"w": w, "v": v}):
        weight = w.data  # <- here
        (batch() * weight * v).sum().backward()


@loses("cut", *FIRST)
def data_through_a_helper() -> None:
    def plain(tensor: Any) -> Any:
        return tensor.data  # <- here

    model = Two(plain)
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "temperature")
def item() -> None:
    temperature = torch.tensor(2.0, requires_grad=True)
    model = nn.Linear(3, 2)
    with watch_gradients({"temperature": temperature, "model": model}):
        scores = model(batch()) / temperature.item()  # <- here
        F.cross_entropy(scores, torch.tensor([0, 1])).backward()


@loses("cut", *FIRST)
def item_summed_over_a_loop() -> None:
    model = Two()
    with watch_gradients(model):
        total = 0.0
        for row in batch():
            total += model.first(row).sum().item()  # <- here
        (model.second(batch()).sum() * total).backward()


@loses("cut", *FIRST)
def a_python_float() -> None:
    model = Two()
    with watch_gradients(model):
        scale = math.exp(-float(model.first(batch()).mean()))  # <- here
        (model.second(batch()) * scale).mean().backward()


@loses("cut", "w")
def tolist() -> None:
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(1, requires_grad=True)
    with watch_gradients({"w": w, "v": v}):
        values = (w * 2).tolist()  # <- here
        (v * sum(values)).sum().backward()


@loses("cut", *FIRST)
def numpy() -> None:
    import numpy as np

    def through_numpy(h: Any) -> Any:
        array = h.detach().numpy()  # <- here
        return torch.from_numpy(np.tanh(array))

    model = Two(through_numpy)
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "w")
def numpy_forced() -> None:
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    with watch_gradients({"w": w, "v": v}):
        array = (w * 2).numpy(force=True)  # <- here
        (torch.as_tensor(array) * v).sum().backward()


@loses("cut", *FIRST)
def numpy_in_a_method() -> None:
    class Net(Two):
        def encode(self, x: Any) -> Any:
            return self.first(x).cpu().data.numpy().copy()  # <- here

        def forward(self, x: Any) -> Any:
            return self.second(torch.tensor(self.encode(x)))

    model = Net()
    with watch_gradients(model):
        model(batch()).mean().backward()


@loses("cut", "a", "b")
def tensor_of_a_list() -> None:
    a, b, c = (torch.tensor(1.0, requires_grad=True) for _ in range(3))
    with watch_gradients({"a": a, "b": b, "c": c}):
        stacked = torch.tensor([a * 2, b * 3])  # <- here
        (stacked * c).sum().backward()


@loses("cut", *FIRST)
def tensor_of_a_tensor() -> None:
    model = Two()
    with watch_gradients(model):
        h = torch.tensor(model.first(batch()))  # <- here
        model.second(h).sum().backward()


@loses("cut", "losses.0", "losses.1")
def tensor_of_losses() -> None:
    losses = [torch.tensor(1.0, requires_grad=True) for _ in range(2)]
    with watch_gradients({"losses": losses}):
        total = torch.tensor([loss * 2 for loss in losses], requires_grad=True)  # <- here
        total.sum().backward()


@loses("cut", *FIRST)
def a_parameter_of_a_result() -> None:
    model = Two()
    with watch_gradients(model):
        hidden = nn.Parameter(model.first(batch()))  # <- here
        model.second(hidden).sum().backward()


@loses("cut", *FIRST)
def integer_cast() -> None:
    model = Two(lambda h: h.long().float())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "w")
def integer_cast_by_to() -> None:
    w = torch.full((3,), 1.5, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    with watch_gradients({"w": w, "v": v}):
        indices = w.to(torch.int64)  # <- here
        v[indices].sum().backward()


@loses("cut", *FIRST)
def integer_cast_in_a_loss() -> None:
    model = Two()
    with watch_gradients(model):
        rounded = (model.first(batch()) * 10).int()  # <- here
        (model.second(batch()) * rounded.sum()).sum().backward()


# -- gradients switched off --------------------------------------------------------------------


@loses("no-grad", *FIRST)
def no_grad_block() -> None:
    model = Two()
    with watch_gradients(model):
        with torch.no_grad():  # <- here
            h = model.first(batch())
        model.second(h).sum().backward()


@loses("no-grad", *FIRST, *SECOND)
def a_backward_of_what_has_no_graph() -> None:
    model = Two()
    with watch_gradients(model):
        with torch.no_grad():  # <- here
            loss = model(batch()).sum()
        with contextlib.suppress(RuntimeError):
            loss.backward()


@loses("never-backward", *FIRST, *SECOND)
def a_backward_that_fails_for_another_reason() -> None:
    model = Two()
    with watch_gradients(model):
        powers = model(batch()).exp()
        powers += powers.detach()
        with contextlib.suppress(RuntimeError):
            powers.sum().backward()  # <- here


@loses("no-grad", *FIRST)
def no_grad_method() -> None:
    class Net(Two):
        @torch.no_grad()  # <- here
        def encode(self, x: Any) -> Any:
            return self.first(x).relu()

        def forward(self, x: Any) -> Any:
            return self.second(self.encode(x))

    model = Net()
    with watch_gradients(model):
        F.mse_loss(model(batch()), torch.zeros(2, 1)).backward()


@loses("no-grad", "embedding.weight")
def no_grad_around_an_embedding() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 1)})
    with watch_gradients(model):
        with torch.no_grad():  # <- here
            vectors = model["embedding"](torch.tensor([0, 2]))
        model["head"](vectors).sum().backward()


@loses("no-grad", *FIRST)
def inference_mode() -> None:
    model = Two()
    with watch_gradients(model):
        with torch.inference_mode():  # <- here
            h = model.first(batch())
        model.second(h.clone()).sum().backward()


@loses("no-grad", "w")
def grad_mode_left_off() -> None:
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    with watch_gradients({"w": w, "v": v}):
        torch.set_grad_enabled(False)  # <- here
        h = batch() @ w
        torch.set_grad_enabled(True)
        (h.sum() * v).sum().backward()


# -- non-leaves --------------------------------------------------------------------------------


@loses("non-leaf", "h")
def a_hidden_state() -> None:
    x = batch().requires_grad_()
    h = x * 2
    with watch_gradients(h):
        h.sum().backward()  # <- here


@loses("non-leaf", "w")
def a_parameter_moved_after_it_was_made() -> None:
    w = torch.randn(3, requires_grad=True).to(torch.float64)
    with watch_gradients({"w": w}):
        (w * 2).sum().backward()  # <- here


@loses("non-leaf", "0")
def scaled_at_birth() -> None:
    w = torch.randn(3, requires_grad=True) * 0.1
    with watch_gradients([w]):
        loss = (batch() * w).sum()
        loss.backward()  # <- here


# -- replaced ----------------------------------------------------------------------------------


@loses("replaced", "first.weight")
def a_new_parameter_after_the_forward() -> None:
    model = Two()
    with watch_gradients(model):
        loss = model(batch()).sum()
        model.first.weight = nn.Parameter(torch.zeros(3, 3))
        loss.backward()


@loses("replaced", *FIRST)
def a_new_layer_after_the_forward() -> None:
    model = Two()
    with watch_gradients(model):
        h = model.first(batch())
        model.first = nn.Linear(3, 3)
        model.second(h).sum().backward()


@loses("replaced", *FIRST)
def a_new_layer_after_the_optimizer() -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_gradients(model):
        model.first = nn.Linear(3, 3)
        model(batch()).sum().backward()
        optimizer.step()  # <- here


@loses("replaced", *FIRST, *SECOND)
def state_assigned() -> None:
    model = Two()
    state = copy.deepcopy(model.state_dict())
    with watch_gradients(model):
        loss = model(batch()).sum()
        model.load_state_dict(state, assign=True)  # <- here
        loss.backward()


# -- other parameters --------------------------------------------------------------------------


@loses("other-parameters", *FIRST, *SECOND)
def a_copy_is_trained() -> None:
    model = Two()
    student = copy.deepcopy(model)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with watch_gradients(model):
        student(batch()).sum().backward()
        optimizer.step()  # <- here


@loses("other-parameters", "weight", "bias")
def a_model_made_twice() -> None:
    def build() -> Any:
        return nn.Linear(3, 1)

    trained, watched = build(), build()
    optimizer = torch.optim.AdamW(trained.parameters())
    with watch_gradients(watched):
        for _ in range(2):
            optimizer.zero_grad()
            trained(batch()).pow(2).mean().backward()
            optimizer.step()  # <- here


@loses("other-parameters", *FIRST, *SECOND)
def a_shadow_is_watched() -> None:
    model = Two()
    shadow = Two()
    shadow.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch_gradients(shadow):
        model(batch()).sum().backward()
        optimizer.step()  # <- here
        for p, q in zip(model.parameters(), shadow.parameters(), strict=True):
            q.data.lerp_(p.data, 0.1)


# -- where a value goes ------------------------------------------------------------------------


class Trainer:
    """A loop that keeps records, as people write it."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())
        self.records: list[float] = []
        self.last_hidden: Any = None

    def loss(self, x: Any) -> Any:
        hidden = self.net.first(x)
        self.records.append(hidden.norm().item())
        self.last_hidden = hidden.detach()
        return self.net.second(x).pow(2).mean()

    def fit(self, batches: Any) -> None:
        for x in batches:
            self.optimizer.zero_grad()
            loss = self.loss(x)
            loss.backward()
            self.optimizer.step()
            self.records.append(loss.item())


@loses("not-in-graph", *FIRST)
def recorded_by_a_trainer() -> None:
    model = Two()
    with watch_gradients(model):
        Trainer(model).fit([batch(), batch()])


@loses("cut", *FIRST)
def stored_by_one_method_and_used_by_another() -> None:
    class Cache:
        def keep(self, h: Any) -> None:
            self.kept = h.detach()  # <- here

        def loss(self, net: Any) -> Any:
            return net.second(self.kept).mean()

    model, cache = Two(), Cache()
    with watch_gradients(model):
        cache.keep(model.first(batch()))
        cache.loss(model).backward()


@loses("cut", "w")
def stored_by_a_closure() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    store = {}

    def save(name: str, tensor: Any) -> None:
        store[name] = tensor.detach()  # <- here

    with watch_gradients({"w": w, "v": v}):
        save("h", w * 2)
        (store["h"] * v).sum().backward()


@loses("cut", "w")
def yielded_by_a_generator() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))

    def rows() -> Any:
        for index in range(3):
            yield (w[index] * 2).data  # <- here

    with watch_gradients({"w": w, "v": v}):
        (torch.stack(list(rows())) * v).sum().backward()


@loses("cut", "generator.weight", "generator.bias")
def the_discriminator_alone() -> None:
    model = nn.ModuleDict({"generator": nn.Linear(3, 3), "critic": nn.Linear(3, 1)})
    with watch_gradients(model):
        fake = model["generator"](batch())
        loss = (
            model["critic"](
                fake.detach(),  # <- here
            ).mean()
            - model["critic"](batch()).mean()
        )
        loss.backward()


@loses("no-grad", "target.weight", "target.bias")
def a_target_network() -> None:
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)
    with watch_gradients({"online": online, "target": target}):
        with torch.no_grad():  # <- here
            wanted = target(batch()).max(1).values
        F.mse_loss(online(batch())[:, 0], wanted).backward()
