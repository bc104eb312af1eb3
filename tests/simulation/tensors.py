"""Operations on tensors; each function computes on the device that it is given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}


def prog(function):
    """Register a program."""
    PROGRAMS[function.__name__] = function
    return function


@prog
def indexing(dev):
    x = torch.arange(12.0, device=dev).view(3, 4)
    i = torch.tensor([0, 2])
    x[i]
    x[:, i.to(dev)]
    x[x > 5] = 0
    x[0, 0] = torch.tensor(7.0)
    x[1] = torch.ones(4)
    x[i, i] = 9.0
    return (x.tolist(), x[i].sum().item())


@prog
def scatter_gather(dev):
    x = torch.arange(6.0, device=dev).view(2, 3)
    i = torch.tensor([[0, 1, 1], [1, 0, 0]], device=dev)
    return (
        x.gather(1, i).tolist(),
        torch.zeros(2, 3, device=dev).scatter_add_(1, i, x).tolist(),
        torch.zeros(2, 3, device=dev).scatter_(1, i, 1.0).tolist(),
    )


@prog
def ops(dev):
    x = torch.arange(6.0, device=dev).view(2, 3)
    return [
        t.tolist()
        for t in (
            torch.cat([x, x]),
            torch.stack([x, x]).sum(0),
            torch.einsum("ij,kj->ik", x, x),
            x.topk(2).values,
            x.sort(descending=True)[1],
            torch.where(x > 2, x, 0.0),
            x.clamp(1, 3),
            x.softmax(-1),
            torch.unique(x.long() % 2),
            x.cumsum(0),
            x.T,
            F.one_hot(x.long()),
            torch.linalg.norm(x),
            F.pad(x, (1, 1)),
            torch.fft.fft(x).abs(),
            x.median(),
            torch.cdist(x, x),
            x.std(),
            torch.linalg.svdvals(x),
            F.interpolate(x[None], scale_factor=2)[0],
            torch.tril(x),
            torch.bmm(x[None], x.T[None]),
            torch.bincount(x.long().flatten()),
            torch.repeat_interleave(x, 2, dim=0),
            torch.full_like(x, 2),
            x.new_ones(2),
            x.new_tensor([1.0]),
            torch.nan_to_num(x / 0),
        )
    ]


@prog
def sparse(dev):
    s = torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]], device=dev), torch.tensor([1.0, 2.0], device=dev), (2, 2)
    )
    e = nn.Embedding(4, 2, sparse=True).to(dev)
    e(torch.tensor([1, 2], device=dev)).sum().backward()
    o = torch.optim.SparseAdam(e.parameters())
    o.step()
    return (
        torch.sparse.mm(s, torch.ones(2, 2, device=dev)).tolist(),
        s.is_cuda == (dev != "cpu"),
        s.to_dense().tolist(),
        e.weight.grad.is_sparse,
    )


@prog
def attention(dev):
    q = torch.ones(1, 2, 3, 4, device=dev)
    m = nn.MultiheadAttention(4, 2, batch_first=True).to(dev)
    return (
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().item(),
        m(q[0], q[0], q[0])[0].shape,
    )


@prog
def ctc(dev):
    return F.ctc_loss(
        torch.zeros(4, 1, 3, device=dev).log_softmax(-1),
        torch.tensor([[1, 2]], device=dev),
        torch.tensor([4]),
        torch.tensor([2]),
    ).item()


@prog
def losses(dev):
    a = torch.arange(4.0, device=dev) / 4
    b = torch.ones(4, device=dev)
    return [
        f(a, b).item()
        for f in (
            F.mse_loss,
            F.l1_loss,
            F.smooth_l1_loss,
            F.binary_cross_entropy,
            F.binary_cross_entropy_with_logits,
            F.kl_div,
            F.huber_loss,
        )
    ] + [
        F.nll_loss(
            a.view(2, 2), torch.tensor([0, 1], device=dev), weight=torch.ones(2, device=dev)
        ).item(),
        F.triplet_margin_loss(a[None], b[None], a[None]).item(),
        F.cosine_embedding_loss(a[None], b[None], torch.ones(1, device=dev)).item(),
    ]


@prog
def type_conv(dev):
    x = torch.ones(2, device=dev)
    return [
        str(t.device.type == torch.device(dev).type)
        for t in (
            x.half(),
            x.double(),
            x.bfloat16().float(),
            x.long(),
            x.bool(),
            x.type(torch.float64),
            x.to(torch.int32),
            x.clone(),
            x.contiguous(),
            x.detach(),
            x.data,
            x.view(1, 2),
            x.expand(2, 2),
            x.numpy(force=True) is not None and x,
            x.type_as(torch.ones(1, dtype=torch.double, device=dev)),
        )
    ]


@prog
def iter_(dev):
    return (
        [r.device.type == torch.device(dev).type for r in torch.ones(2, 2, device=dev)],
        [float(v) for v in torch.ones(2, device=dev)],
        int(torch.tensor(3, device=dev)),
        bool(torch.tensor(True, device=dev)),
        f"{torch.tensor(2.0, device=dev):.2f}",
        list(range(5))[torch.tensor(2, device=dev)],
    )
