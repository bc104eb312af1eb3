"""Training, checkpoints and models; each function computes on the device that it is given."""

from __future__ import annotations

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}


def prog(function):
    """Register a program."""
    PROGRAMS[function.__name__] = function
    return function


def classes():
    """Eight points and their classes."""
    return torch.randn(8, 4), torch.randint(0, 3, (8,))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "adadelta": torch.optim.Adadelta,
}


def network():
    """A small classifier."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


for _name, _make in OPTIMIZERS.items():
    PROGRAMS[f"optimizer_{_name}"] = lambda dev, make=_make: train(
        network, classes, F.cross_entropy, make, dev
    )


def train(model, data, loss, opt, dev, steps=4, **kw):
    torch.manual_seed(0)
    m = model().to(dev)
    o = opt(m.parameters())
    out = []
    for _ in range(steps):
        o.zero_grad()
        x, y = data()
        loss_ = loss(m(x.to(dev)), y.to(dev))
        loss_.backward()
        o.step()
        out.append(loss_.item())
    return out


@prog
def lbfgs(dev):
    torch.manual_seed(0)
    w = torch.zeros(3, device=dev, requires_grad=True)
    o = torch.optim.LBFGS([w], max_iter=5)

    def c():
        o.zero_grad()
        loss_ = ((w - 1) ** 4).sum()
        loss_.backward()
        return loss_

    o.step(c)
    return w.tolist()


@prog
def cnn(dev):
    return train(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        lambda: (torch.randn(4, 1, 4, 4), torch.randint(0, 3, (4,))),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.1),
        dev,
    )


class R(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(10, 4)
        s.r = nn.LSTM(4, 6, num_layers=2, batch_first=True, dropout=0.2)
        s.o = nn.Linear(6, 3)

    def forward(s, x):
        return s.o(s.r(s.e(x))[0][:, -1])


@prog
def lstm(dev):
    return train(
        R,
        lambda: (torch.randint(0, 10, (4, 5)), torch.randint(0, 3, (4,))),
        F.cross_entropy,
        lambda p: torch.optim.Adam(p),
        dev,
    )


class PK(nn.Module):
    def __init__(s):
        super().__init__()
        s.r = nn.GRU(4, 6, batch_first=True)
        s.o = nn.Linear(6, 3)

    def forward(s, x):
        p = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        o, h = s.r(p)
        o, _ = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
        return s.o(o[:, 0]) + s.o(h[-1])


@prog
def packed(dev):
    return train(
        PK,
        lambda: (torch.randn(2, 3, 4), torch.randint(0, 3, (2,))),
        F.cross_entropy,
        lambda p: torch.optim.Adam(p),
        dev,
    )


class T(nn.Module):
    def __init__(s):
        super().__init__()
        s.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        s.o = nn.Linear(8, 3)

    def forward(s, x):
        return s.o(s.t(x).mean(1))


@prog
def transformer(dev):
    return train(
        T,
        lambda: (torch.randn(2, 3, 8), torch.randint(0, 3, (2,))),
        F.cross_entropy,
        lambda p: torch.optim.Adam(p),
        dev,
    )


@prog
def transformer_eval(dev):
    torch.manual_seed(0)
    m = T().to(dev).eval()
    with torch.no_grad():
        return m(torch.ones(2, 3, 8, device=dev)).tolist()


@prog
def transformer_padded(dev):
    torch.manual_seed(0)
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    m = m.to(dev).eval()
    hidden = torch.tensor([[False] * 3, [False, True, True]], device=dev)
    with torch.no_grad():
        y = m(torch.ones(2, 3, 8, device=dev), src_key_padding_mask=hidden)
    return (y.tolist(), y.device.type == torch.device(dev).type)


@prog
def two_halves(dev):
    first = second = "cpu" if dev == "cpu" else "cuda:0"
    if torch.cuda.device_count() > 1 and dev != "cpu":
        second = "cuda:1"
    out = []
    for make in OPTIMIZERS.values():
        torch.manual_seed(0)
        a, b = nn.Linear(3, 4).to(first), nn.Linear(4, 1).to(second)
        both = [*a.parameters(), *b.parameters()]
        o = make(both)
        for _ in range(2):
            o.zero_grad()
            loss_ = b(a(torch.ones(2, 3, device=first)).relu().to(second)).pow(2).mean()
            loss_.backward()
            nn.utils.clip_grad_norm_(both, 0.5)
            o.step()
            out.append(loss_.item())
        assert {p.grad.device for p in both} == {torch.device(first), torch.device(second)}
        for p in both:
            assert {v.device for k, v in o.state[p].items() if k not in SCALARS} <= {p.device}
    return out


SCALARS = ("step", "mu_product", "eta", "mu", "ax")


@prog
def inference(dev):
    with torch.inference_mode():
        return nn.Linear(2, 2).to(dev)(torch.ones(1, 2, device=dev)).shape


@prog
def gan(dev):
    torch.manual_seed(0)
    g = nn.Linear(2, 2).to(dev)
    d = nn.Linear(2, 1).to(dev)
    og = torch.optim.Adam(g.parameters())
    od = torch.optim.Adam(d.parameters())
    out = []
    bce = nn.BCEWithLogitsLoss()
    for _ in range(3):
        z = torch.randn(4, 2, device=dev)
        fake = g(z)
        real = torch.randn(4, 2).to(dev)
        ld = bce(d(real), torch.ones(4, 1, device=dev)) + bce(
            d(fake.detach()), torch.zeros(4, 1, device=dev)
        )
        od.zero_grad()
        ld.backward()
        od.step()
        lg = bce(d(fake), torch.ones(4, 1, device=dev))
        og.zero_grad()
        lg.backward()
        og.step()
        out += [ld.item(), lg.item()]
    return out


@prog
def vae(dev):
    torch.manual_seed(0)
    e = nn.Linear(4, 4).to(dev)
    d = nn.Linear(2, 4).to(dev)
    x = torch.randn(3, 4).to(dev)
    mu, lv = e(x).chunk(2, -1)
    z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
    loss_ = F.mse_loss(d(z), x) - 0.5 * (1 + lv - mu**2 - lv.exp()).sum()
    loss_.backward()
    return (loss_.item(), e.weight.grad.sum().item())


@prog
def save_load(dev):
    m = nn.Linear(2, 2).to(dev)
    o = torch.optim.Adam(m.parameters())
    m(torch.ones(1, 2, device=dev)).sum().backward()
    o.step()
    b = io.BytesIO()
    torch.save({"m": m.state_dict(), "o": o.state_dict(), "x": [m.weight]}, b)
    b.seek(0)
    c = torch.load(b, map_location=dev)
    m2 = nn.Linear(2, 2).to(dev)
    m2.load_state_dict(c["m"])
    o2 = torch.optim.Adam(m2.parameters())
    o2.load_state_dict(c["o"])
    m2(torch.ones(1, 2, device=dev)).sum().backward()
    o2.step()
    assert {v.device.type for s in o2.state.values() for k, v in s.items() if k != "step"} == {
        torch.device(dev).type
    }
    return o2.state[m2.weight]["step"].item()


@prog
def whole_module(dev):
    b = io.BytesIO()
    torch.save(nn.Linear(2, 2).to(dev), b)
    b.seek(0)
    m = torch.load(b, weights_only=False)
    b.seek(0)
    c = torch.load(b, weights_only=False, map_location="cpu")
    return (m.weight.device.type == torch.device(dev).type, c.weight.device.type)


@prog
def legacy_save(dev):
    b = io.BytesIO()
    torch.save(torch.ones(2, device=dev), b, _use_new_zipfile_serialization=False)
    b.seek(0)
    return torch.load(b).device.type == torch.device(dev).type


@prog
def amp(dev):
    torch.manual_seed(0)
    d = torch.device(dev).type
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(dev)
    o = torch.optim.SGD(m.parameters(), lr=0.01)
    s = torch.amp.GradScaler(d, init_scale=8.0)
    x = torch.randn(5, 4).to(dev)
    out = []
    for _ in range(3):
        o.zero_grad()
        with torch.autocast(d, dtype=torch.bfloat16):
            y = m(x)
            loss_ = F.mse_loss(y.float(), torch.ones_like(y).float())
        s.scale(loss_).backward()
        s.unscale_(o)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(o)
        s.update()
        out.append((loss_.item(), str(y.dtype)))
    return out


@prog
def ema(dev):
    m = nn.Linear(2, 2).to(dev)
    e = copy.deepcopy(m)
    a = torch.optim.swa_utils.AveragedModel(m, device=dev)
    with torch.no_grad():
        for p, q in zip(e.parameters(), m.parameters(), strict=True):
            p.mul_(0.9).add_(q, alpha=0.1)
    a.update_parameters(m)
    return all(
        p.device.type == torch.device(dev).type for p in list(e.parameters()) + list(a.parameters())
    )


@prog
def sched(dev):
    m = nn.Linear(2, 1).to(dev)
    o = torch.optim.SGD(m.parameters(), lr=1.0)
    s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=4)
    r = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
    for _ in range(3):
        o.step()
        s.step()
    r.step(torch.tensor(1.0, device=dev))
    return s.get_last_lr()


@prog
def spectral(dev):
    torch.manual_seed(0)
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).to(dev)
    m(torch.ones(1, 3, device=dev)).sum().backward()
    w = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).to(dev)
    return w(torch.ones(1, 3, device=dev)).device.type == torch.device(dev).type


@prog
def lazy(dev):
    m = nn.LazyLinear(2).to(dev)
    m(torch.ones(1, 3, device=dev))
    return m.weight.device.type == torch.device(dev).type


@prog
def skip_init(dev):
    return (
        nn.Linear(2, 2, device=dev, dtype=torch.float64).weight.device.type
        == torch.device(dev).type,
        nn.Conv2d(1, 1, 1, device=dev).bias.is_cuda == (dev != "cpu"),
        nn.utils.skip_init(nn.Linear, 2, 2, device=dev).weight.is_cuda == (dev != "cpu"),
    )


@prog
def meta(dev):
    with torch.device("meta"):
        m = nn.Linear(2, 2)
    m.to_empty(device=dev)
    return m.weight.device.type == torch.device(dev).type


@prog
def accum(dev):
    torch.manual_seed(0)
    m = nn.Linear(2, 1).to(dev)
    for _ in range(3):
        m(torch.ones(1, 2, device=dev)).sum().backward()
    g = m.weight.grad.clone()
    m.zero_grad()
    assert m.weight.grad is None
    m.weight.grad = g
    return g.tolist()


@prog
def loader(dev):
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    dl = DataLoader(
        TensorDataset(torch.arange(8.0)[:, None], torch.arange(8)),
        batch_size=3,
        shuffle=True,
        pin_memory=dev != "cpu",
        num_workers=1,
    )
    return [x.to(dev, non_blocking=True).sum().item() for x, y in dl]


@prog
def param_list(dev):
    m = nn.ParameterList([nn.Parameter(torch.ones(2, device=dev))])
    assert m[0].is_cuda == (dev != "cpu")
    p = nn.Parameter(torch.zeros(2).to(dev))
    return (copy.copy(p).device.type == torch.device(dev).type, p.detach().cpu().numpy().tolist())


@prog
def contextual(dev):
    with torch.device(dev):
        a = torch.zeros(2)
        nn.LSTM(2, 2)
        c = torch.arange(3)
        d = torch.tensor([1])
        e = torch.from_numpy(__import__("numpy").ones(2))
    return (a.device.type == torch.device(dev).type, e.device.type, c.device.type == d.device.type)
