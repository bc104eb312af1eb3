"""Backwards, transforms and TorchScript; each function computes on the device that it is given."""

from __future__ import annotations

import io

import torch
from torch import nn

PROGRAMS = {}


def prog(function):
    """Register a program."""
    PROGRAMS[function.__name__] = function
    return function


@prog
def distributions(dev):
    torch.manual_seed(0)
    n = torch.distributions.Normal(torch.zeros(3, device=dev), torch.ones(3, device=dev))
    s = n.rsample()
    c = torch.distributions.Categorical(logits=torch.zeros(4, device=dev))
    return (
        n.log_prob(s).tolist(),
        c.sample().item(),
        c.entropy().item(),
        torch.distributions.kl_divergence(n, n).tolist(),
    )


class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        assert x.device.type == DEV
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert g.device == x.device, (g.device, x.device)
        return 2 * x * g * torch.ones(1, device=g.device)


@prog
def custom_function(dev):
    global DEV
    DEV = torch.device(dev).type
    x = torch.arange(3.0, device=dev, requires_grad=True)
    Sq.apply(x).sum().backward()
    return x.grad.tolist()


@prog
def checkpointed(dev):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3)).to(dev)
    x = torch.ones(2, 3, device=dev, requires_grad=True)
    r = []
    for re in (True, False):
        o = checkpoint(lambda a: m(a) * torch.ones(1, device=a.device), x, use_reentrant=re)
        o.sum().backward()
        r.append(m[0].weight.grad.sum().item())
    return r


@prog
def checkpointed_activations(dev):
    from torch.utils.checkpoint import checkpoint_sequential

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.ReLU()) for _ in range(4)]
    m = nn.Sequential(*layers).to(dev)
    x = torch.ones(2, 3, device=dev, requires_grad=True)
    checkpoint_sequential(m, 2, x, use_reentrant=False).sum().backward()
    return x.grad.tolist()


@prog
def packed_activations(dev):
    kept = []
    m = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Softmax(-1)).to(dev)
    nn.init.ones_(m[0].weight)
    x = torch.ones(2, 3, device=dev, requires_grad=True)
    scale = torch.tensor(2.0)

    def pack(t):
        kept.append((t.shape, t.device.type == ("cpu" if t.dim() == 0 else torch.device(dev).type)))
        return t.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(dev)):
        y = (m(x) * scale).pow(2).sum()
    y.backward()
    return (kept, x.grad.tolist())


@prog
def gradients_by_sample(dev):
    torch.manual_seed(0)
    m = nn.Linear(3, 2).to(dev)
    p = {name: value.detach() for name, value in m.named_parameters()}
    y = torch.tensor([0, 1, 1], device=dev)

    def loss(p, x, y):
        out = torch.func.functional_call(m, p, (x[None],))
        return nn.functional.cross_entropy(out, y[None])

    g = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        p, torch.randn(3, 3, device=dev), y
    )
    return (g["weight"].tolist(), g["weight"].device.type == torch.device(dev).type)


@prog
def double_backward(dev):
    x = torch.ones(3, device=dev, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (g**2).sum().backward()
    return (x.grad.tolist(), str(g.device.type == torch.device(dev).type))


@prog
def cross(dev):
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, device=dev, requires_grad=True)
    y = (w.to(dev) * v).sum() * torch.tensor(2.0)
    y.backward()
    return (w.grad.device.type, w.grad.tolist(), v.grad.tolist())


@prog
def mixed_dtype_cross(dev):
    w = torch.ones(3, requires_grad=True)
    (w.to(dev, torch.float64) * 2).sum().backward()
    return (w.grad.device.type, w.grad.dtype, w.grad.tolist())


@prog
def hooks(dev):
    d = []
    x = torch.ones(2, device=dev, requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: d.append(g.device.type) or g * torch.ones(2, device=g.device))
    y.sum().backward()
    m = nn.Linear(2, 2).to(dev)
    m.register_full_backward_hook(lambda m, gi, go: d.append(go[0].device.type))
    m(x).sum().backward()
    return (len(d), x.grad.tolist()[:0])


@prog
def func_api(dev):
    m = nn.Linear(2, 2).to(dev)
    nn.init.ones_(m.weight)
    nn.init.zeros_(m.bias)
    pr = dict(m.named_parameters())

    def f(p, x):
        return torch.func.functional_call(m, p, (x,)).sum()

    g = torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))(pr, torch.ones(3, 2, device=dev))
    return (
        g["weight"].tolist(),
        g["weight"].device.type == torch.device(dev).type,
        torch.func.jacrev(lambda x: x**2)(torch.ones(2, device=dev)).tolist(),
    )


@prog
def functional_jac(dev):
    return (
        torch.autograd.functional.jacobian(lambda x: x**2, torch.ones(2, device=dev)).tolist(),
        torch.autograd.functional.hessian(
            lambda x: (x**3).sum(), torch.ones(2, device=dev)
        ).tolist(),
    )


@prog
def jit(dev):
    s = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to(dev))
    y = s(torch.ones(1, 2, device=dev))
    return y.device.type == torch.device(dev).type


@prog
def traced(dev):
    m = nn.Linear(2, 2).to(dev)
    t = torch.jit.trace(m, torch.ones(1, 2, device=dev))
    y = t(torch.ones(1, 2, device=dev))
    b = io.BytesIO()
    torch.jit.save(t, b)
    b.seek(0)
    loss_ = torch.jit.load(b, map_location=dev)
    return (
        y.device.type == torch.device(dev).type,
        loss_(torch.ones(1, 2, device=dev)).device.type == torch.device(dev).type,
    )


@prog
def compiled(dev):
    m = torch.compile(nn.Linear(2, 2).to(dev), backend="eager")
    y = m(torch.ones(1, 2, device=dev))
    y.sum().backward()
    return y.device.type == torch.device(dev).type
