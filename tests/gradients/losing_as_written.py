"""Programs as people write them: reinforcement learning, quantization, meta-learning, files."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import tempfile
import threading
from typing import Any

import numpy as np
import torch
from losing_programs import FIRST, SECOND, Two, batch, loses
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_gradguard import watch_gradients, why_no_grad


@loses("cut", "enc.weight", "enc.bias")
def vq_without_straight_through() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc = nn.Linear(3, 4)
            self.book = nn.Embedding(5, 4)
            self.dec = nn.Linear(4, 3)

        def quantize(self, z):
            d = torch.cdist(z, self.book.weight)
            idx = d.argmin(dim=-1)  # <- here
            return self.book(idx)

        def forward(self, x: Any) -> Any:
            return self.dec(self.quantize(self.enc(x)))

    model = Net()
    with watch_gradients(model):
        F.mse_loss(model(batch()), batch()).backward()


@loses("cut", *FIRST)
def policy_reward() -> None:
    class Env:
        def step(self, action):
            return action.float().sum() * 2

    model = Two()
    env = Env()
    with watch_gradients(model):
        dist = torch.distributions.Categorical(logits=model.first(batch()))
        action = dist.sample()  # <- here
        reward = env.step(action)
        loss = -(model.second(batch()).sum() * reward)
        loss.backward()


@loses("cut", *FIRST)
def vae_sample() -> None:
    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 6)
            self.second = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            mu, logvar = self.first(x).chunk(2, -1)
            z = torch.distributions.Normal(mu, (0.5 * logvar).exp()).sample()  # <- here
            return self.second(z)

    m = VAE()
    with watch_gradients(m):
        F.mse_loss(m(batch()), batch()).backward()


@loses("cut", *FIRST)
def hard_attention_masked() -> None:
    m = Two()
    with watch_gradients(m):
        scores = m.first(batch())
        top = torch.topk(scores, k=1, dim=-1)[1]  # <- here
        picked = torch.gather(batch(), -1, top)
        (picked * m.second(batch())).sum().backward()


@loses("cut", *FIRST)
def clone_detach_mid_forward() -> None:
    m = Two(lambda h: torch.relu(h).clone().detach() * 2)  # <- here
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def mask_then_detach() -> None:
    m = Two(lambda h: (h * (h > 0)).detach())  # <- here
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def max_values_detached() -> None:
    m = Two()
    with watch_gradients(m):
        target = m.first(batch()).max(dim=1).values.detach()  # <- here
        F.mse_loss(m.second(batch())[:, 0], target).backward()


@loses("cut", *FIRST)
def float_cast_in_list() -> None:
    m = Two()
    with watch_gradients(m):
        vals = [float(v) for v in m.first(batch()).flatten()]  # <- here
        x = torch.tensor(vals).reshape(2, 3)
        m.second(x).sum().backward()


@loses("cut", *FIRST)
def np_array_of_list() -> None:
    m = Two()
    with watch_gradients(m):
        arr = np.array([h.detach().numpy() for h in m.first(batch())])  # <- here
        m.second(torch.from_numpy(arr)).sum().backward()


@loses("cut", *FIRST)
def numpy_function_on_detached() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch())
        s = np.log1p(np.abs(h.detach().cpu().numpy())).mean()  # <- here
        (m.second(batch()).mean() * float(s)).backward()


@loses("cut", *FIRST)
def pickle_file_round() -> None:
    m = Two()
    with watch_gradients(m), tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "h.pkl")
        with open(path, "wb") as f:
            pickle.dump(m.first(batch()).detach(), f)  # <- here
        with open(path, "rb") as f:
            h = pickle.load(f)
        m.second(h).sum().backward()


@loses("cut", *FIRST)
def torch_save_path() -> None:
    m = Two()
    with watch_gradients(m), tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "h.pt")
        torch.save(m.first(batch()), path)  # <- here
        h = torch.load(path)
        m.second(h).sum().backward()


@loses("cut", *FIRST)
def csv_file_round() -> None:
    m = Two()
    with watch_gradients(m), tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "h.csv")
        with open(path, "w") as f:
            for row in m.first(batch()).tolist():  # <- here
                f.write(",".join(map(str, row)) + "\n")
        rows = []
        with open(path) as f:
            for line in f:
                rows.append([float(v) for v in line.split(",")])  # noqa: PERF401  # as people write it
        m.second(torch.tensor(rows)).sum().backward()


@loses("cut", *FIRST)
def helper_save_load() -> None:
    def roundtrip(t):
        buf = io.BytesIO()
        torch.save(t, buf)  # <- here
        buf.seek(0)
        return torch.load(buf)

    m = Two(roundtrip)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def json_dump_load() -> None:
    def roundtrip(t):
        return torch.tensor(json.loads(json.dumps(t.tolist())))  # <- here

    m = Two(roundtrip)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def string_repr() -> None:
    def through_text(t):
        text = ",".join(f"{v:.4f}" for v in t.flatten())  # <- here
        return torch.tensor([float(p) for p in text.split(",")]).reshape(t.shape)

    m = Two(through_text)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", "first.weight", "first.bias", "second.weight", "second.bias")
def functional_deepcopied_params() -> None:
    m = Two()
    s = nn.Parameter(torch.ones(()))
    with watch_gradients({"": m, "s": s}):
        fast = {k: v.clone().detach().requires_grad_() for k, v in m.named_parameters()}  # <- here
        (torch.func.functional_call(m, fast, (batch(),)).sum() * s).backward()


@loses("cut", "first.weight", "first.bias", "second.weight", "second.bias")
def maml_first_order() -> None:
    m = Two(torch.tanh)
    lr = nn.Parameter(torch.tensor(0.1))
    with watch_gradients({"": m, "lr": lr}):
        named = dict(m.named_parameters())
        params = {k: v.detach().clone().requires_grad_() for k, v in named.items()}  # <- here
        loss = torch.func.functional_call(m, params, (batch(),)).sum()
        grads = torch.autograd.grad(loss, list(params.values()))
        fast = {k: p - lr * g for (k, p), g in zip(params.items(), grads, strict=False)}
        torch.func.functional_call(m, fast, (batch(),)).pow(2).sum().backward()


@loses("cut", "temp")
def maml_learned_loss() -> None:
    m = Two(torch.tanh)
    temp = nn.Parameter(torch.tensor(1.3))
    with watch_gradients({"": m, "temp": temp}):
        inner = (m(batch()) * temp).sum()
        grads = torch.autograd.grad(inner, list(m.parameters()))  # <- here
        fast = {k: p - 0.1 * g for (k, p), g in zip(m.named_parameters(), grads, strict=False)}
        torch.func.functional_call(m, fast, (batch(),)).pow(2).sum().backward()


@loses("cut", "net.0.weight", "net.0.bias", "net.2.weight")
def pinn() -> None:
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    scale = nn.Parameter(torch.ones(1))

    def residual(x):
        u = net(x)
        ones = torch.ones_like(u)
        du = torch.autograd.grad(u, x, grad_outputs=ones, retain_graph=True)[0]  # <- here
        return scale * du + 1

    with watch_gradients({"net": net, "scale": scale}):
        x = torch.rand(16, 1, requires_grad=True)
        residual(x).square().mean().backward()


@loses("cut", "emb.weight")
def checkpoint_of_tokens() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 1)

        def forward(self, t: Any) -> Any:
            h = checkpoint(self.emb, t, use_reentrant=True)  # <- here
            return self.head(h)

    m = Net()
    with watch_gradients(m):
        m(torch.tensor([[1, 2]])).sum().backward()


@loses("cut", *FIRST)
def checkpoint_user_block() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            h = self.first(x)
            return torch.relu(h) + x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.second = nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            x = checkpoint(self.block, x, use_reentrant=True)  # <- here
            return self.second(x)

    m = Net()
    with watch_gradients({"": m.block, "second": m.second}):
        m(batch()).sum().backward()


@loses("no-grad", *FIRST)
def no_grad_view() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch())
        with torch.no_grad():  # <- here
            flat = h.view(-1)
            total = flat.sum()
        (m.second(batch()).sum() * total).backward()


@loses("cut", *FIRST)
def named_in_a_test() -> None:
    m = Two()
    with watch_gradients(m):
        if (h := m.first(batch()).detach()) is not None:  # <- here
            m.second(h).sum().backward()


@loses("no-grad", *FIRST)
def written_by_out() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch())
        twice = torch.empty(2, 3)
        with torch.no_grad():  # <- here
            torch.mul(h, 2, out=twice)
        m.second(twice).sum().backward()


@loses("no-grad", *FIRST)
def set_grad_enabled_block() -> None:
    m = Two()
    training = False
    with watch_gradients(m):
        with torch.set_grad_enabled(training):  # <- here
            h = m.first(batch())
        m.second(h).sum().backward()


@loses("no-grad", *FIRST)
def no_grad_argmax() -> None:
    m = Two()
    with watch_gradients(m):
        with torch.no_grad():  # <- here
            pred = m.first(batch()).argmax(-1)
        F.cross_entropy(m.second(batch()).expand(2, 3), pred).backward()


@loses("no-grad", *FIRST)
def buffer_cache_no_grad() -> None:
    class Net(Two):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("memory", torch.zeros(2, 3))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():  # <- here
                self.memory.copy_(self.first(x))
            return self.second(self.memory)

    m = Net()
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("no-grad", *FIRST)
def buffer_slice_no_grad() -> None:
    m = Two()
    mem = torch.zeros(4, 3)
    with watch_gradients(m):
        with torch.no_grad():  # <- here
            mem[:2] = m.first(batch())
        m.second(mem).sum().backward()


@loses("other-parameters", *FIRST, *SECOND)
def trained_copy_inside() -> None:
    m = Two()
    with watch_gradients(m):
        c = copy.deepcopy(m)
        opt = torch.optim.SGD(c.parameters(), lr=0.1)
        for _ in range(2):
            opt.zero_grad()
            c(batch()).sum().backward()
            opt.step()


@loses("no-grad", "target.weight", "target.bias")
def ema_target() -> None:
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)
    opt = torch.optim.SGD(online.parameters(), lr=0.1)
    with watch_gradients({"online": online, "target": target}):
        for _ in range(2):
            with torch.no_grad():  # <- here
                y = target(batch())
            opt.zero_grad()
            F.mse_loss(online(batch()), y).backward()
            opt.step()
            with torch.no_grad():
                for p, q in zip(online.parameters(), target.parameters(), strict=False):
                    q.mul_(0.9).add_(p, alpha=0.1)


@loses("cut", "target.weight", "target.bias")
def dqn_target_detach() -> None:
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)
    opt = torch.optim.SGD(online.parameters(), lr=0.1)
    with watch_gradients({"online": online, "target": target}):
        for _ in range(2):
            y = target(batch()).max(1)[0].detach()  # <- here
            opt.zero_grad()
            F.mse_loss(online(batch())[:, 0], y).backward()
            opt.step()
            target.load_state_dict(online.state_dict())


@loses("not-in-graph", "ema.module.weight", "ema.module.bias")
def averaged_model() -> None:
    online = nn.Linear(3, 1)
    ema = torch.optim.swa_utils.AveragedModel(online)
    with watch_gradients({"online": online, "ema": ema}):
        online(batch()).sum().backward()
        ema.update_parameters(online)


@loses("not-asked", "b")
def backward_inputs() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with watch_gradients({"a": a, "b": b}):
        (a * b).sum().backward(inputs=[a])  # <- here


@loses("not-asked", "b")
def func_grad_argnums() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with watch_gradients({"a": a, "b": b}):
        torch.func.grad(lambda x, y: (x * y).sum())(a, b)


@loses("not-in-graph", "aux.weight", "aux.bias")
def aux_head_unused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 3)
            self.main = nn.Linear(3, 1)
            self.aux = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.main(h), self.aux(h)

    m = Net()
    with watch_gradients(m):
        main, aux = m(batch())
        print((aux.argmax(-1) == 0).float().mean().item())
        loss = main.sum()
        loss.backward()  # <- here


@loses("not-in-graph", *FIRST)
def metrics_dict() -> None:
    m = Two()
    logs = {}
    with watch_gradients(m):
        h = m.first(batch())
        logs["mean"] = h.mean().item()
        logs["pred"] = h.argmax(-1).tolist()
        logs["big"] = (h > 1).float().mean().item()
        m.second(batch()).sum().backward()  # <- here
        print(logs)


@loses("frozen", *FIRST)
def frozen_no_override() -> None:
    m = Two()
    for p in m.first.parameters():
        p.requires_grad_(False)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    with watch_gradients(m):
        m(batch()).sum().backward()
        opt.step()


@loses("never-backward", "w")
def freed_graph() -> None:
    w = nn.Parameter(torch.ones(2))
    loss = (w * w).sum()
    loss.backward()
    with watch_gradients({"w": w}):
        try:
            loss.backward()  # <- here
        except RuntimeError:
            pass


@loses("all-zero", "w")
def times_zero() -> None:
    w = nn.Parameter(torch.ones(2))
    with watch_gradients({"w": w}, nonzero=True):
        (w * 0).sum().backward()  # <- here


@loses("all-zero", "w")
def sign_zero() -> None:
    w = nn.Parameter(torch.ones(2))
    with watch_gradients({"w": w}, nonzero=True):
        torch.sign(w).sum().backward()  # <- here


@loses("all-zero", *FIRST)
def bernoulli_zero() -> None:
    m = Two(lambda h: torch.bernoulli(torch.sigmoid(h)))  # <- here
    with watch_gradients({"first": m.first}, nonzero=True):
        m(batch()).sum().backward()


@loses("not-finite", "w")
def inf_grad() -> None:
    w = nn.Parameter(torch.zeros(2))
    with watch_gradients({"w": w}):
        (1 / w).sum().backward()  # <- here


@loses("cut", *FIRST)
def autocast_half_then_int() -> None:
    m = Two(lambda h: h.to(torch.int8).float())  # <- here
    with watch_gradients(m), torch.autocast("cpu", dtype=torch.bfloat16):
        m(batch()).float().sum().backward()


@loses("cut", *FIRST)
def quantized() -> None:
    m = Two(lambda h: torch.quantize_per_tensor(h, 0.1, 0, torch.qint8).dequantize())  # <- here
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def float_tensor_ctor() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch())
        x = torch.FloatTensor([[v.item() for v in row] for row in h])  # <- here
        m.second(x).sum().backward()


@loses("non-leaf", "h")
def hidden_non_leaf() -> None:
    w = nn.Parameter(torch.ones(2))
    h = w * 2
    with watch_gradients({"h": h}):
        h.relu().sum().backward()  # <- here


@loses("cut", *FIRST)
def method_cut_in_other_function() -> None:
    class Memory:
        def __init__(self) -> None:
            self.items = []

        def push(self, s):
            self.items.append(s.detach())  # <- here

        def batch(self):
            return torch.stack(self.items)

    m = Two()
    mem = Memory()
    with watch_gradients(m):
        for row in batch():
            mem.push(m.first(row))
        m.second(mem.batch()).sum().backward()


@loses("cut", *FIRST)
def gumbel_argmax() -> None:
    m = Two()
    with watch_gradients(m):
        logits = m.first(batch())
        noise = -torch.log(-torch.log(torch.rand_like(logits)))
        hard = F.one_hot((logits + noise).argmax(-1), 3).float()  # <- here
        m.second(hard).sum().backward()


@loses("not-produced", "w")
def none_function() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, g):
            return g, None

    x, w = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with watch_gradients({"x": x, "w": w}):
        Bad.apply(x, w).sum().backward()  # <- here


@loses("replaced", "first.weight", "first.bias")
def swapped_layer_before_backward() -> None:
    m = Two()
    with watch_gradients(m):
        loss = m(batch()).sum()
        m.first = nn.Linear(3, 3)
        loss.backward()


@loses("cut", "w")
def scheduler_int() -> None:
    w = nn.Parameter(torch.tensor(2.5))
    v = nn.Parameter(torch.ones(5))
    with watch_gradients({"w": w, "v": v}):
        n = int(w)  # <- here
        v[:n].sum().backward()


@loses("cut", "w")
def python_round() -> None:
    w = nn.Parameter(torch.tensor(2.5))
    v = nn.Parameter(torch.ones(5))
    with watch_gradients({"w": w, "v": v}):
        n = round(w.item())  # <- here
        (v * n).sum().backward()


@loses("cut", "w")
def index_use() -> None:
    w = nn.Parameter(torch.tensor(2.5))
    v = nn.Parameter(torch.ones(5))
    with watch_gradients({"w": w, "v": v}):
        (v * [1, 2, 3][w.long()]).sum().backward()  # <- here


@loses("cut", *FIRST)
def clamp_by_compare() -> None:
    m = Two(lambda h: torch.where(h > 0, torch.ones_like(h), torch.zeros_like(h)))  # <- here
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def softmax_prediction_nll() -> None:
    m = Two()
    with watch_gradients(m):
        pred = m.first(batch()).softmax(-1).argmax(-1)  # <- here
        F.l1_loss(pred.float(), m.second(batch())[:, 0]).backward()


@loses("cut", *FIRST)
def isnan_count() -> None:
    m = Two()
    with watch_gradients(m):
        penalty = torch.isnan(m.first(batch())).sum()  # <- here
        (m.second(batch()).sum() + penalty).backward()


@loses("cut", *FIRST)
def fft_argmax_method_chain() -> None:
    m = Two()
    with watch_gradients(m):
        idx = torch.fft.rfft(m.first(batch())).abs().argmax(-1, keepdim=True)  # <- here
        m.second(idx.float().expand(2, 3)).sum().backward()


@loses("cut", "w")
def function_forward_capture() -> None:
    w = nn.Parameter(torch.ones(3))
    v = nn.Parameter(torch.ones(3))

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * w  # <- here

        @staticmethod
        def backward(ctx, g):
            return g

    with watch_gradients({"w": w, "v": v}):
        Fn.apply(v).sum().backward()


@loses("cut", *FIRST)
def forward_hook_detaches() -> None:
    m = Two()
    m.first.register_forward_hook(lambda mod, a, out: out.detach())  # <- here
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def shallow_copy() -> None:
    m = Two(copy.copy)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def forward_in_a_thread() -> None:
    m = Two()
    out = []
    with watch_gradients(m):
        t = threading.Thread(target=lambda: out.append(m.first(batch()).detach()))  # <- here
        t.start()
        t.join()
        m.second(out[0]).sum().backward()


@loses("no-grad", *FIRST)
def no_grad_in_helper() -> None:
    def features(m, x):
        with torch.no_grad():  # <- here
            return m.first(x)

    m = Two()
    with watch_gradients(m):
        F.mse_loss(m.second(features(m, batch())), torch.zeros(2, 1)).backward()


@loses("cut", "log_alpha")
def sac_alpha_exp_detach() -> None:
    log_alpha = nn.Parameter(torch.zeros(1))
    actor = nn.Linear(3, 1)
    with watch_gradients({"log_alpha": log_alpha, "actor": actor}):
        alpha = log_alpha.exp().detach()  # <- here
        (alpha * actor(batch())).mean().backward()


@loses("not-in-graph", "critic.weight", "critic.bias")
def two_losses_one_backward() -> None:
    m = nn.ModuleDict({"actor": nn.Linear(3, 1), "critic": nn.Linear(3, 1)})
    with watch_gradients(m):
        actor_loss = m["actor"](batch()).mean()
        critic_loss = m["critic"](batch()).mean()
        print(critic_loss.item(), critic_loss.detach())
        actor_loss.backward()  # <- here


@loses("cut", "critic.weight", "critic.bias")
def advantage_detached() -> None:
    m = nn.ModuleDict({"actor": nn.Linear(3, 3), "critic": nn.Linear(3, 1)})
    with watch_gradients(m):
        logp = m["actor"](batch()).log_softmax(-1)
        value = m["critic"](batch()).squeeze(-1)
        advantage = 1.0 - value.detach()  # <- here
        loss = -(logp[:, 0] * advantage).mean()
        loss.backward()


@loses("cut", *FIRST)
def dataclass_store() -> None:
    from dataclasses import dataclass

    @dataclass
    class Out:
        h: Any
        loss: Any = None

    m = Two()
    with watch_gradients(m):
        o = Out(m.first(batch()).data)  # <- here
        o.loss = m.second(o.h).sum()
        o.loss.backward()


@loses("cut", *FIRST)
def numpy_np_function() -> None:
    m = Two()
    with watch_gradients(m):
        h = np.tanh(m.first(batch()).detach())  # <- here
        m.second(torch.as_tensor(h)).sum().backward()


@loses("cut", *FIRST)
def tensor_constructor() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch())
        x = torch.tensor([[h[0, 0], h[0, 1], h[1, 2]]])  # <- here
        m.second(x).sum().backward()


@loses("cut", *FIRST)
def threshold_count_loss() -> None:
    m = Two()
    with watch_gradients(m):
        p = torch.sigmoid(m.first(batch()))
        tp = ((p > 0.5) & (torch.ones(2, 3) > 0)).sum()  # <- here
        loss = 1 - tp / 6.0 + m.second(batch()).mean()
        loss.backward()


@loses("cut", *FIRST)
def nms_like() -> None:
    m = Two()
    with watch_gradients(m):
        keep = m.first(batch())[:, 0].sort(descending=True).indices[:1]  # <- here
        m.second(batch()[keep]).sum().backward()


@loses("cut", *FIRST)
def median_index() -> None:
    m = Two()
    with watch_gradients(m):
        _, i = m.first(batch()).median(dim=1)  # <- here
        m.second(batch())[:, 0].mul(i).sum().backward()


@loses("cut", "gate.weight", "gate.bias")
def hard_router() -> None:
    class MoE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(3, 2)
            self.experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

        def forward(self, x: Any) -> Any:
            route = self.gate(x).argmax(-1)  # <- here
            outs = torch.stack([e(x) for e in self.experts], 1)
            return outs[torch.arange(len(x)), route]

    m = MoE()
    with watch_gradients({"gate": m.gate}):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def loss_value_weight() -> None:
    m = Two()
    with watch_gradients(m):
        a = m.first(batch()).pow(2).mean()
        w = 1.0 / (1.0 + a.item())  # <- here
        (w * m.second(batch()).mean()).backward()


@loses("cleared", "w")
def set_to_none_by_user() -> dict[str, str]:
    w = nn.Parameter(torch.ones(2))
    with watch_gradients({"w": w}):
        (w * 2).sum().backward()  # <- here
        w.grad = None
        return {"w": why_no_grad(w)}


@loses("no-grad", "h")
def why_h_no_grad() -> dict[str, str]:
    w = nn.Parameter(torch.ones(2))
    v = nn.Parameter(torch.ones(2))
    with watch_gradients({"v": v}):
        with torch.no_grad():  # <- here
            h = w * 2
        (h * v).sum().backward()
        return {"h": why_no_grad(h)}


@loses("cut", "m")
def why_mask() -> dict[str, str]:
    w = nn.Parameter(torch.ones(2))
    v = nn.Parameter(torch.ones(2))
    with watch_gradients({"v": v}):
        m = w > 0  # <- here
        (m * v).sum().backward()
        return {"m": why_no_grad(m)}


@loses("cut", "a")
def why_argmax() -> dict[str, str]:
    w = nn.Parameter(torch.ones(2))
    v = nn.Parameter(torch.ones(2))
    with watch_gradients({"v": v}):
        a = w.argmax()  # <- here
        (v * a).sum().backward()
        return {"a": why_no_grad(a)}


@loses("frozen", "buffer")
def buffer_watched() -> None:
    bn = nn.BatchNorm1d(3)
    with watch_gradients({"bn": bn, "buffer": bn.running_mean}):
        bn(batch()).pow(2).sum().backward()


@loses("not-in-graph", "0.bias")
def bias_false_path() -> None:
    lin = nn.Linear(3, 1)
    with watch_gradients([lin]):
        F.linear(batch(), lin.weight).sum().backward()  # <- here


@loses("replaced", "weight", "bias")
def swap_by_del() -> None:
    lin = nn.Linear(3, 1)
    with watch_gradients(lin):
        loss = lin(batch()).sum()
        w, b = lin.weight, lin.bias
        lin.weight = nn.Parameter(w.detach().clone())
        lin.bias = nn.Parameter(b.detach().clone())
        loss.backward()


@loses("all-zero", *FIRST)
def floor_zero() -> None:
    m = Two(lambda h: torch.floor(h * 4) / 4)  # <- here
    with watch_gradients({"first": m.first}, nonzero=True):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def fake_quant_cast() -> None:
    def q(h):
        scale = h.abs().max() / 127
        return (h / scale).to(torch.int8).float() * scale.detach()  # <- here

    m = Two(q)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def cdist_argmin_gather() -> None:
    m = Two()
    cents = torch.randn(4, 3)

    def assign(h):
        return cents[torch.cdist(h, cents).min(dim=1).indices]  # <- here

    m.between = assign
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def beam_text_loop() -> None:
    m = Two()
    with watch_gradients(m):
        tokens = []
        for row in m.first(batch()):
            tokens += [int(row.argmax())]  # <- here
        F.cross_entropy(m.second(batch()).expand(2, 3), torch.tensor(tokens)).backward()


@loses("never-backward", "w")
def under_enable_only() -> None:
    w = nn.Parameter(torch.ones(2))
    with watch_gradients({"w": w}), torch.no_grad():
        (w * 2).sum()


@loses("other-parameters", "weight", "bias")
def wrong_model_loss() -> None:
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    with watch_gradients(a):
        b(batch()).sum().backward()  # <- here


@loses("cut", "net.weight", "net.bias")
def hessian_vector() -> None:
    net = nn.Linear(3, 1)
    s = nn.Parameter(torch.ones(()))
    with watch_gradients({"net": net, "s": s}):
        x = batch().requires_grad_()
        g = torch.autograd.grad(net(x).tanh().sum(), [x], create_graph=False)[0]  # <- here
        (g.pow(2).sum() * s).backward()


@loses("cut", "net.weight", "net.bias")
def functional_hvp() -> None:
    net = nn.Linear(3, 1)
    s = nn.Parameter(torch.ones(()))
    with watch_gradients({"net": net, "s": s}):
        ones = torch.ones(2, 3)
        slope = lambda x: net(x).tanh().sum()  # noqa: E731
        _, hv = torch.autograd.functional.hvp(slope, batch(), ones)  # <- here
        (hv.pow(2).sum() * s).backward()


@loses("cut", *FIRST)
def pandas_round() -> None:
    import csv

    def rt(h):
        buf = io.StringIO()
        w = csv.writer(buf)
        for row in h.tolist():  # <- here
            w.writerow(row)
        buf.seek(0)
        return torch.tensor([[float(v) for v in r] for r in csv.reader(buf)])

    m = Two(rt)
    with watch_gradients(m):
        m(batch()).sum().backward()


@loses("cut", *FIRST)
def pickle_method() -> None:
    class Cache:
        def put(self, key, value):
            self.data = pickle.dumps(value.detach())  # <- here

        def get(self, key):
            return pickle.loads(self.data)

    m = Two()
    c = Cache()
    with watch_gradients(m):
        c.put("h", m.first(batch()))
        m.second(c.get("h")).sum().backward()


@loses("cut", *FIRST)
def eval_repr() -> None:
    m = Two()
    with watch_gradients(m):
        text = repr(m.first(batch()).tolist())  # <- here
        h = torch.tensor(eval(text))
        m.second(h).sum().backward()


@loses("cut", *FIRST)
def dict_update() -> None:
    m = Two()
    cache = {}
    with watch_gradients(m):
        cache.update(h=m.first(batch()).detach())  # <- here
        m.second(cache["h"]).sum().backward()


@loses("no-grad", "teacher.weight", "teacher.bias")
def distillation_teacher() -> None:
    student, teacher = nn.Linear(3, 3), nn.Linear(3, 3)
    with watch_gradients({"student": student, "teacher": teacher}):
        with torch.no_grad():  # <- here
            soft = teacher(batch()).softmax(-1)
        F.kl_div(student(batch()).log_softmax(-1), soft, reduction="batchmean").backward()


@loses("cut", *FIRST)
def contiguous_untyped() -> None:
    m = Two()
    with watch_gradients(m):
        h = m.first(batch()).cpu().detach().requires_grad_(True)  # <- here
        m.second(h).sum().backward()


@loses("frozen", *FIRST)
def toggled_gan() -> None:
    m = Two()

    def toggle(flag):
        for p in m.first.parameters():
            p.requires_grad_(flag)

    with watch_gradients(m):
        toggle(False)
        loss = m(batch()).sum()
        toggle(True)
        loss.backward()
