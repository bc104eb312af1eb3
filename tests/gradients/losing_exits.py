"""Programs whose values leave the graph by an operation, a copy, a conversion or a mode."""

from __future__ import annotations

import copy
import io
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from losing_programs import FIRST, SECOND, Two, batch, loses
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_gradguard import watch_gradients

# -- operations without a derivative -----------------------------------------------------------


@loses("cut", *FIRST)
def argmax_one_hot() -> None:
    model = Two(lambda h: F.one_hot(h.argmax(-1), 3).float())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def argmax_as_a_function() -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Embedding(3, 2)})
    with watch_gradients({"first": model["first"], "second": model["second"]}):
        codes = torch.argmin(model["first"](batch()), dim=1)  # <- here
        model["second"](codes).sum().backward()


@loses("cut", *FIRST)
def a_comparison() -> None:
    model = Two()
    with watch_gradients(model):
        mask = (model.first(batch()) > 0).float()  # <- here
        model.second(mask).sum().backward()


@loses("cut", *FIRST)
def an_accuracy_as_loss() -> None:
    model = Two()
    with watch_gradients(model):
        hits = model.first(batch()) == torch.ones(3)  # <- here
        loss = 1 - hits.float().mean() + model.second(batch()).mean()
        loss.backward()


@loses("cut", "threshold")
def a_threshold_in_a_where() -> None:
    threshold, w = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(3))
    with watch_gradients({"threshold": threshold, "w": w}):
        keep = torch.where(batch() >= threshold, batch(), torch.zeros(()))  # <- here
        (keep * w).sum().backward()


@loses("cut", "threshold")
def a_number_compared_with_a_tensor() -> None:
    threshold, w = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(3))
    with watch_gradients({"threshold": threshold, "w": w}):
        gate = (threshold > 0.5).float()  # <- here
        (gate * w).sum().backward()


@loses("cut", *FIRST)
def a_comparison_as_a_function() -> None:
    model = Two(lambda h: torch.gt(h, 0.5).type(torch.float32))  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def indices_of_topk() -> None:
    model = Two()
    with watch_gradients(model):
        chosen = model.first(batch()).topk(2).indices  # <- here
        model.second(torch.zeros(2, 3).scatter(1, chosen, 1.0)).sum().backward()


@loses("cut", *FIRST)
def order_of_sort() -> None:
    model = Two()
    with watch_gradients(model):
        _, order = torch.sort(model.first(batch()))  # <- here
        model.second(batch().gather(1, order)).sum().backward()


@loses("cut", *FIRST)
def order_of_argsort() -> None:
    model = Two(lambda h: batch().gather(1, h.argsort(dim=1)))  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def indices_of_max() -> None:
    model = Two()
    with watch_gradients(model):
        best = model.first(batch()).max(dim=1)[1]  # <- here
        F.cross_entropy(model.second(batch()).expand(2, 3), best).backward()


@loses("cut", *FIRST)
def where_nonzero() -> None:
    model = Two()
    with watch_gradients(model):
        count = torch.nonzero(model.first(batch())).shape[0]  # <- here
        (model.second(batch()) * count).sum().backward()


@loses("cut", "edges")
def buckets() -> None:
    edges, table = nn.Parameter(torch.tensor([0.5, 1.0])), nn.Embedding(3, 1)
    with watch_gradients({"edges": edges, "table": table}):
        index = torch.bucketize(batch(), edges)  # <- here
        table(index).sum().backward()


@loses("cut", *FIRST)
def logical() -> None:
    model = Two()
    with watch_gradients(model):
        fired = torch.logical_and(model.first(batch()), torch.ones(3))  # <- here
        model.second(fired.float()).sum().backward()


@loses("cut", *FIRST)
def counted() -> None:
    model = Two()
    with watch_gradients(model):
        sparsity = torch.count_nonzero(model.first(batch())) / 6  # <- here
        (model.second(batch()).sum() + sparsity).backward()


@loses("cut", "scores")
def drawn_by_multinomial() -> None:
    scores, table = nn.Parameter(torch.zeros(4)), nn.Embedding(4, 2)
    with watch_gradients({"scores": scores, "table": table}):
        drawn = torch.multinomial(scores.softmax(0), 3, replacement=True)  # <- here
        table(drawn).sum().backward()


@loses("cut", *FIRST)
def a_bool_of_a_tensor() -> None:
    model = Two()
    with watch_gradients(model):
        scale = 2.0 if model.first(batch()).sum() > 0 else 1.0
        flag = bool(model.first(batch()).mean())  # <- here
        (model.second(batch()) * flag * scale).sum().backward()


# -- drawn -------------------------------------------------------------------------------------


@loses("cut", *FIRST)
def sample_of_a_normal() -> None:
    model = Two(lambda h: torch.distributions.Normal(h, 1.0).sample())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def sample_of_a_categorical() -> None:
    model = Two()
    with watch_gradients(model):
        policy = torch.distributions.Categorical(logits=model.first(batch()))
        action = policy.sample()  # <- here
        model.second(F.one_hot(action, 3).float()).sum().backward()


@loses("cut", *FIRST)
def sample_of_a_bernoulli() -> None:
    def gate(h: Any) -> Any:
        return torch.distributions.Bernoulli(logits=h).sample((1,)).squeeze(0)  # <- here

    model = Two(gate)
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def sample_of_an_independent_one() -> None:
    model = Two()
    with watch_gradients(model):
        latent = torch.distributions.Independent(
            torch.distributions.Normal(model.first(batch()), 1.0), 1
        )
        model.second(latent.sample()).sum().backward()  # <- here


# -- conversions -------------------------------------------------------------------------------


@loses("cut", "w")
def asarray() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        array = np.asarray((w * 2).detach())  # <- here
        (torch.from_numpy(array) * v).sum().backward()


@loses("cut", "w")
def formatted() -> None:
    w, v = (nn.Parameter(torch.tensor(1.5)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        text = f"{w * 2:.3f}"  # <- here
        (float(text) * v).backward()


@loses("cut", "w")
def printed_and_read() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        text = str(w * 2).partition("(")[2].partition(", grad")[0]  # <- here
        (torch.tensor(json.loads(text.replace(".", ".0"))) * v).sum().backward()


@loses("cut", "w")
def through_json() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        text = json.dumps((w * 2).tolist())  # <- here
        (torch.tensor(json.loads(text)) * v).sum().backward()


@loses("cut", "w")
def through_a_text_file() -> None:
    w, v = (nn.Parameter(torch.tensor(1.0)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "value.txt"
        path.write_text(str((w * 2).item()))  # <- here
        (float(path.read_text()) * v).backward()


@loses("cut", "w")
def through_a_numpy_file() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        file = io.BytesIO()
        np.save(file, (w * 2).detach().numpy())  # <- here
        file.seek(0)
        (torch.from_numpy(np.load(file)) * v).sum().backward()


@loses("cut", *FIRST)
def through_pickle() -> None:
    model = Two(lambda h: pickle.loads(pickle.dumps(h.data)))  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "w")
def a_parameter_through_pickle() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        other = pickle.loads(pickle.dumps(w))  # <- here
        (other * v).sum().backward()


@loses("cut", "w")
def through_torch_save() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        file = io.BytesIO()
        torch.save(w, file)  # <- here
        file.seek(0)
        (torch.load(file) * v).sum().backward()


@loses("cut", "w")
def a_deep_copy() -> None:
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with watch_gradients({"w": w, "v": v}):
        other = copy.deepcopy(w)  # <- here
        (other * v).sum().backward()


@loses("cut", *FIRST)
def type_as_integers() -> None:
    model = Two(lambda h: h.type_as(torch.zeros(1, dtype=torch.int32)).float())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", *FIRST)
def detached_and_trained_on() -> None:
    model = Two()
    with watch_gradients(model):
        h = model.first(batch()).detach().requires_grad_()  # <- here
        model.second(h).sum().backward()


@loses("cut", *FIRST)
def written_into_data() -> None:
    model = Two()
    target = nn.Linear(3, 1)
    with watch_gradients(model):
        target.weight.data = model.first(batch())[:1]  # <- here
        (target(batch()) + model.second(batch())).sum().backward()


@loses("cut", *FIRST)
def copied_into_data() -> None:
    model = Two()
    target = nn.Linear(3, 1)
    with watch_gradients(model):
        target.weight.data.copy_(model.first(batch())[:1])  # <- here
        (target(batch()) + model.second(batch())).sum().backward()


@loses("cut", *FIRST)
def written_into_a_part_of_data() -> None:
    model = Two()
    target = nn.Linear(3, 1)
    with watch_gradients(model):
        target.weight.data[:, :2] = model.first(batch())[:1, :2]  # <- here
        (target(batch()) + model.second(batch())).sum().backward()


@loses("cut", *FIRST)
def multiplied_into_data() -> None:
    model = Two()
    target = nn.Linear(3, 1)
    with watch_gradients(model):
        target.weight.data.mul_(model.first(batch())[:1])  # <- here
        (target(batch()) + model.second(batch())).sum().backward()


@loses("no-grad", *FIRST)
def copied_without_gradients() -> None:
    model = Two()
    target = nn.Linear(3, 1)
    with watch_gradients(model):
        generated = model.first(batch())[:1]
        with torch.no_grad():  # <- here
            target.weight.copy_(generated)
        (target(batch()) + model.second(batch())).sum().backward()


@loses("cut", *FIRST)
def a_vector_into_parameters() -> None:
    model = Two()
    target = nn.Linear(2, 1)
    with watch_gradients(model):
        generated = model.first(batch())[0]
        nn.utils.vector_to_parameters(generated, target.parameters())  # <- here
        (target(batch()[:, :2]) + model.second(batch())).sum().backward()


# -- torch.func, checkpoints, functions --------------------------------------------------------


@loses("cut", *FIRST, *SECOND)
def the_state_of_a_module_called() -> None:
    model, scale = Two(), nn.Parameter(torch.ones(()))
    with watch_gradients({"": model, "scale": scale}):
        state = model.state_dict()  # <- here
        (torch.func.functional_call(model, state, (batch(),)) * scale).sum().backward()


@loses("cut", *FIRST, *SECOND)
def called_with_detached_parameters() -> None:
    model, scale = Two(), nn.Parameter(torch.ones(()))
    with watch_gradients({"": model, "scale": scale}):
        state = {name: p.detach() for name, p in model.named_parameters()}  # <- here
        (torch.func.functional_call(model, state, (batch(),)) * scale).sum().backward()


@loses("cut", "0.weight", "0.bias", "1.weight", "1.bias")
def an_ensemble_stacked() -> None:
    models = [nn.Linear(3, 1) for _ in range(2)]
    with watch_gradients(models):
        stacked, _ = torch.func.stack_module_state(models)  # <- here

        def call(parameters: Any) -> Any:
            return torch.func.functional_call(models[0], parameters, (batch(),))

        torch.func.vmap(call)(stacked).sum().backward()


@loses("cut", *FIRST)
def a_reentrant_checkpoint() -> None:
    model = Two()
    with watch_gradients(model):
        h = checkpoint(model.first, batch(), use_reentrant=True)  # <- here
        model.second(h).sum().backward()


@loses("no-grad", *FIRST)
def a_checkpoint_without_gradients() -> None:
    model = Two()
    with watch_gradients(model):
        with torch.no_grad():  # <- here
            h = checkpoint(model.first, batch(), use_reentrant=False)
        model.second(h).sum().backward()


class Hard(torch.autograd.Function):
    """A step whose output is marked."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = (x > 0).float()
        ctx.mark_non_differentiable(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


@loses("cut", *FIRST)
def marked_non_differentiable() -> None:
    model = Two(lambda h: Hard.apply(h))  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("cut", "create.weight", "create.bias", "scale")
def the_second_order_without_create_graph() -> None:
    create = nn.Linear(1, 1)
    scale = nn.Parameter(torch.ones(1))
    other = nn.Parameter(torch.ones(1))
    x = torch.rand(4, 1, requires_grad=True)
    with watch_gradients({"create": create, "scale": scale, "other": other}):
        u = create(x).tanh() * scale
        du = torch.autograd.grad(u.sum(), x)[0]  # <- here
        ((other * du + 1) ** 2).mean().backward()


@loses("cut", *FIRST, *SECOND)
def a_gradient_penalty_without_create_graph() -> None:
    model, scale = Two(torch.tanh), nn.Parameter(torch.ones(()))
    with watch_gradients({"": model, "scale": scale}):
        x = batch().requires_grad_()
        (slope,) = torch.autograd.grad(  # <- here
            outputs=model(x).sum(),
            inputs=x,
            retain_graph=True,
        )
        penalty = (slope.norm(2, dim=1) - 1).pow(2).mean() * scale
        penalty.backward()


@loses("cut", *FIRST, *SECOND)
def a_jacobian_in_the_loss() -> None:
    model, scale = Two(torch.tanh), nn.Parameter(torch.ones(()))
    with watch_gradients({"": model, "scale": scale}):
        slopes = torch.autograd.functional.jacobian(model, batch())  # <- here
        (slopes.pow(2).sum() * scale).backward()


# -- copies that are trained -------------------------------------------------------------------


@loses("other-parameters", *FIRST, *SECOND)
def a_deep_copy_without_an_optimizer() -> None:
    model = Two()
    with watch_gradients(model):
        student = copy.deepcopy(model)
        student(batch()).sum().backward()  # <- here


@loses("other-parameters", "0.weight", "0.bias", "1.weight", "1.bias")
def a_pickled_copy_without_an_optimizer() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    student = pickle.loads(pickle.dumps(model))
    with watch_gradients(model):
        student(batch()).sum().backward()  # <- here


# -- frozen for a while ------------------------------------------------------------------------


@loses("frozen", *FIRST)
def frozen_for_the_forward() -> None:
    model = Two()
    with watch_gradients(model):
        model.first.requires_grad_(False)  # <- here
        loss = model(batch()).sum()
        model.first.requires_grad_(True)
        loss.backward()


@loses("cut", *FIRST)
def detached_and_frozen_afterwards() -> None:
    model = Two(lambda h: h.detach())  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()
        model.first.requires_grad_(False)


@loses("frozen", "w")
def frozen_and_free_again_at_the_end() -> None:
    w, v = nn.Parameter(torch.ones(3), requires_grad=False), nn.Parameter(torch.ones(3))
    with watch_gradients({"w": w, "v": v}):
        (w * v).sum().backward()
        w.requires_grad = True


# -- not used at all ---------------------------------------------------------------------------


@loses("not-in-graph", "experts.1.weight", "experts.1.bias")
def an_expert_that_gets_no_token() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(3, 2)
            self.experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))
            nn.init.zeros_(self.gate.weight)
            with torch.no_grad():
                self.gate.bias.copy_(torch.tensor([1.0, 0.0]))

        def forward(self, x: Any) -> Any:
            weights = self.gate(x).softmax(-1)
            best = weights.argmax(-1)
            out = x.new_zeros(len(x), 1)
            for index, expert in enumerate(self.experts):
                rows = (best == index).nonzero().squeeze(-1)
                if len(rows):
                    out = out.index_add(0, rows, expert(x[rows]) * weights[rows, index, None])
            return out

    model = Mixture()
    with watch_gradients(model):
        model(batch()).sum().backward()  # <- here


@loses("not-in-graph", *FIRST)
def only_measured() -> None:
    model = Two()
    with watch_gradients(model):
        hidden = model.first(batch())
        accuracy = (hidden.argmax(-1) == torch.tensor([0, 1])).float().mean()
        print(f"accuracy {accuracy:.3f}", hidden.max(), str(hidden))
        loss = model.second(batch()).sum()
        loss.backward()  # <- here


@loses("not-in-graph", *FIRST)
def saved_between_steps() -> None:
    model = Two()
    file = io.BytesIO()
    with watch_gradients(model):
        for _ in range(2):
            model.zero_grad()
            loss = model.second(batch()).sum()
            loss.backward()
            torch.save(model.state_dict(), file)
            best = copy.deepcopy(model)
    assert best is not None


@loses("no-grad", *FIRST, *SECOND)
def a_decorated_loss() -> None:
    online, target = nn.Linear(3, 1), Two()

    @torch.inference_mode()  # <- here
    def wanted(x: Any) -> Any:
        return target(x)

    with watch_gradients({"online": online, "": target}):
        F.mse_loss(online(batch()), wanted(batch()).clone()).backward()


@loses("all-zero", *FIRST)
def rounded_in_between() -> None:
    model = Two(torch.round)
    with watch_gradients({"first": model.first}, nonzero=True):
        model(batch()).sum().backward()


@loses("all-zero", "w")
def a_hook_that_gives_zeros() -> None:
    w = nn.Parameter(torch.ones(3))
    w.register_hook(torch.zeros_like)
    with watch_gradients({"w": w}, nonzero=True):
        (w * 2).sum().backward()  # <- here


@loses("never-backward", "w")
def a_hook_that_raises() -> None:
    w = nn.Parameter(torch.ones(3))

    def fails(gradient: Any) -> Any:
        raise ValueError("no")

    w.register_hook(fails)
    with watch_gradients({"w": w}):
        try:
            (w * 2).sum().backward()  # <- here
        except ValueError:
            pass


# -- what cannot be known ----------------------------------------------------------------------


@loses("cut", *FIRST)
def cut_inside_a_script() -> None:
    @torch.jit.script
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    model = Two(lambda h: hidden(h))  # <- here
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("unknown", "first.weight", "first.bias")
def cut_inside_a_scripted_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).detach())

    model = torch.jit.script(Net())
    with watch_gradients(model):
        model(batch()).sum().backward()


@loses("unknown", "first.weight", "first.bias")
def cut_inside_a_traced_module() -> None:
    model = Two(lambda h: h.detach())
    traced = torch.jit.trace(model, batch(), check_trace=False)
    with watch_gradients(model):
        traced(batch()).sum().backward()


# torch 2.4 leaves out of the graph what compiled code has no gradient for.
@loses("not-in-graph" if torch.__version__ < (2, 5) else "unknown", "first.weight", "first.bias")
def cut_inside_a_compiled_module() -> None:
    model = torch.compile(Two(lambda h: h.detach()), backend="aot_eager")
    with watch_gradients(model):
        model(batch()).sum().backward()
