"""Advice on gradients that are lost, followed."""

from __future__ import annotations

from following import THREADS, Change, Followed

OURS = ("from joblib import Parallel, delayed", "from joblib import delayed\n"
        "from pytest_gradguard.parallel import Parallel")  # fmt: skip
SCALE = """\
import torch
{imports}


def scale(tensor, factor):
    return tensor * factor


x = torch.ones(3, requires_grad=True)
{parts}
(parts[0] + parts[1]).sum().backward()
print(x.grad)
"""
IN_OURS = (
    "from joblib import delayed\nfrom pytest_gradguard.parallel import Parallel",
    "parts = Parallel(n_jobs=2)(delayed(scale)(x, k) for k in (1.0, 2.0))",
)


def scaled(imports: str, parts: str) -> str:
    """A program whose workers scale a tensor."""
    return SCALE.format(imports=imports, parts=parts)


def instead(imports: str, parts: str, new_imports: str, new_parts: str) -> tuple[Change, ...]:
    """Other workers in a `scaled` program."""
    return (imports, new_imports), (parts, new_parts)


SHARED = ("fork = multi", "model.share_memory()\nfork = multi")
GRADIENTS = (
    (
        "    return tensor * factor",
        "    return torch.autograd.grad((tensor * factor).sum(), tensor)[0]",
    ),
    ("loss = (parts[0] + parts[1]).sum()\nloss.backward()", "x.grad = sum(parts)"),
)
POOL = (
    "from multiprocess import Pool",
    "with Pool(2) as pool:\n    parts = pool.starmap(scale, [(x, 1.0), (x, 2.0)])",
)
DASK = (
    "import dask\nfrom dask.distributed import Client",
    "with Client(n_workers=1, processes=False, dashboard_address=None):\n"
    "    parts = dask.compute([dask.delayed(scale)(x, k) for k in (1.0, 2.0)])[0]",
)
FUNC = """\
import torch
from joblib import Parallel, delayed


def part(x, k):
    return (x * k).sin().sum()


def total(x):
    return sum(Parallel(n_jobs=2)(delayed(part)(x, k) for k in (1.0, 2.0)))


x = torch.zeros(2)
print(torch.func.grad(total)(x))
"""
DUAL = """\
import torch
import torch.autograd.forward_ad as fwAD
from joblib import Parallel, delayed


def part(x, t, k):
    y = (x * k).sin()
    return y


x, t = torch.zeros(2), torch.ones(2)
with fwAD.dual_level():
    dual = fwAD.make_dual(x, t)
    parts = Parallel(n_jobs=2)(delayed(part)(dual, t, k) for k in (1.0, 2.0))
    print(fwAD.unpack_dual(sum(parts)).tangent)
"""
EMBEDDED = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.table(torch.tensor(i))


table = torch.nn.Embedding(4, 2)
for rows in DataLoader(Rows(table), batch_size=4, num_workers=2):
    rows.sum().backward()
print(table.weight.grad.tolist())
"""
ROWS_ONCE = "[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]"
LEAF = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.table[i].detach()


if __name__ == "__main__":
    table = torch.zeros(4, 2, requires_grad=True)
    loader = DataLoader(Rows(table), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for rows in loader:
        (rows.sum() + table[0].sum()).backward()
    print(table.grad.tolist())
"""
FIXED = """\
import torch
from joblib import Parallel, delayed


def features(encoder, x):
    found = encoder(x)
    return found


encoder, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
parts = Parallel(n_jobs=2)(delayed(features)(encoder, x) for x in torch.ones(2, 1, 2))
head(torch.cat(parts)).sum().backward()
optimizer.step()
print("lost:", parts[0].requires_grad and encoder.weight.grad is None)
"""
RETURNED = """\
import torch
from joblib import Parallel, delayed


def loss(x, factor):
    total = (x * factor).sum()
    return total


x = torch.ones(3, requires_grad=True)
total = Parallel(n_jobs=2)(delayed(loss)(x, k) for k in (1.0, 2.0))[1]
print(total)
"""

GRADIENTS_KEPT = [
    Followed(
        "GG101",
        "",
        "tensor([8., 8., 8.])",
        {
            "`tensor.detach()`": (
                (
                    "    loss = (f",
                    "    features = features.clone().requires_grad_()\n    loss = (f",
                ),
                (
                    "Parallel(n_jobs=2)(delayed(gradient)(features, k)",
                    "gradients = Parallel(n_jobs=2)(delayed(gradient)(features.detach(), k)",
                ),
                ("print", "features.backward(sum(gradients))\nprint"),
            ),
        },
    ),
    Followed(
        "GG103",
        "joblib",
        "tensor([3., 3., 3.])",
        {
            "`pytest_gradguard.parallel.Parallel`": (OURS,),
            '`backend="threading"`': (THREADS,),
            "compute the gradients in the workers and return them": GRADIENTS,
        },
    ),
    Followed(
        "GG103",
        "fixed parameters",
        "lost: False",
        {
            "compute the results in the workers under `torch.no_grad()`": (
                ("    found = encoder(x)", "    with torch.no_grad():\n        found = encoder(x)"),
            ),
            "`pytest_gradguard.parallel.Parallel`": (
                ("SGD(head.parameters()", "SGD([*encoder.parameters(), *head.parameters()]"),
                OURS,
            ),
        },
        FIXED,
    ),
    Followed(
        "GG103",
        "multiprocessing",
        "tensor([3., 3., 3.])",
        {
            "`pytest_gradguard.parallel.Parallel`": instead(*POOL, *IN_OURS),
            "`multiprocessing.pool.ThreadPool`": (
                ("multiprocess import Pool", "multiprocessing.pool import ThreadPool as Pool"),
            ),
        },
        scaled(*POOL),
        ("multiprocess",),
    ),
    Followed(
        "GG103",
        "dask",
        "tensor([3., 3., 3.])",
        {
            "`pytest_gradguard.parallel.Parallel`": instead(*DASK, *IN_OURS),
            '`dask.compute(..., scheduler="threads")`': (
                (" for k in (1.0, 2.0)])", ' for k in (1.0, 2.0)], scheduler="threads")'),
            ),
            "a `ThreadPoolExecutor`": instead(
                *DASK,
                "from concurrent.futures import ThreadPoolExecutor",
                "parts = [ThreadPoolExecutor().submit(scale, x, k).result() for k in (1.0, 2.0)]",
            ),
        },
        scaled(*DASK),
        ("distributed",),
    ),
    Followed(
        "GG106",
        "",
        "False",
        {
            "`pytest_gradguard.parallel.Parallel`": (OURS,),
            "Return the gradients": (
                (
                    "    loss.backward()\n",
                    "    return torch.autograd.grad(loss, list(model.parameters()))\n",
                ),
                ("Parallel(n_jobs=2)(d", "results = Parallel(n_jobs=2)(d"),
                (
                    "optimizer.step()",
                    "for p, *grads in zip(model.parameters(), *results):\n"
                    "    p.grad = sum(grads)\noptimizer.step()",
                ),
            ),
        },
    ),
    Followed(
        "GG301",
        "transform",
        "tensor([3., 3.])",
        {
            "Open the transform inside the task": (
                (
                    "    return (x * k)",
                    "    return torch.func.grad(value)(x, k)\n\n\n"
                    "def value(x, k):\n    return (x * k)",
                ),
                ("torch.func.grad(total)(x)", "total(x)"),
            ),
            "Without workers": (
                (
                    "Parallel(n_jobs=2)(delayed(part)(x, k) for k in (1.0, 2.0))",
                    "part(x, k) for k in (1.0, 2.0)",
                ),
            ),
        },
        FUNC,
    ),
    Followed(
        "GG301",
        "forward mode",
        "tensor([3., 3.])",
        {
            "`unpack_dual`": (
                (
                    "    y = (x * k).sin()\n    return y",
                    "    with fwAD.dual_level():\n"
                    "        y = fwAD.unpack_dual((fwAD.make_dual(x, t) * k).sin())\n"
                    "        return y.primal, y.tangent",
                ),
                ("with fwAD.dual_level():\n    dual = fwAD.make_dual(x, t)\n    parts", "parts"),
                ("(dual, t, k)", "(x, t, k)"),
                (
                    "    print(fwAD.unpack_dual(sum(parts)).tangent)",
                    "print(sum(tangent for _, tangent in parts))",
                ),
            ),
        },
        DUAL,
    ),
    Followed(
        "GG102",
        "",
        "tensor(6.)",
        {
            "`tensor.detach()`": (("    return total", "    return total.detach()"),),
            "`.item()`": (
                ("    return total", "    return total.item()"),
                ("(total)", "(torch.tensor(total))"),
            ),
            "`pytest_gradguard.parallel.Parallel`": (
                OURS,
                ("print(total)", "print(total.detach())"),
            ),
            '`backend="threading"`': (THREADS, ("print(total)", "print(total.detach())")),
        },
        RETURNED,
    ),
    Followed(
        "GG111",
        "",
        "tensor([0.9500, 0.9500])",
        {
            '`backend="threading"`': (THREADS,),
        },
    ),
    Followed(
        "GG114",
        "process",
        "False",
        {
            "Call `model.share_memory()` before the process starts": (SHARED,),
            "save `model.state_dict()` there with `torch.save`, and load it into": (
                ("optimizer.step()", "optimizer.step()\n    torch.save(model.state_dict(), path)"),
                ("join()", 'join()\nmodel.load_state_dict(torch.load("trained.pt"))'),
            ),
        },
        """\
import multiprocessing

import torch


def train(model, path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(torch.ones(4, 2)) - 1).square().mean()
    loss.backward()
    optimizer.step()


model = torch.nn.Linear(2, 1)
before = model.weight.detach().clone()
fork = multiprocessing.get_context("fork")
process = fork.Process(target=train, args=(model, "trained.pt"))
process.start()
process.join()
model.eval()
print(torch.equal(before, model.weight))
""",
    ),
    Followed(
        "GG111",
        "process",
        "tensor([0.5000, 0.5000])",
        {
            "Call `model.share_memory()` before the process starts": (SHARED,),
            "send the buffers to the parent as well, and copy them into its module": (
                ("put(None)", "put([one.numpy() for one in model.buffers()])"),
                ("queue.get()", "buffers = queue.get()"),
                (
                    "join()",
                    "join()\nfor buffer, value in zip(model.buffers(), buffers):\n"
                    "    buffer.copy_(torch.as_tensor(value))",
                ),
            ),
        },
        """\
import multiprocessing

import torch


def calibrate(model, queue):
    with torch.no_grad():
        model(torch.full((4, 2), 5.0))
    queue.put(None)


model = torch.nn.BatchNorm1d(2)
fork = multiprocessing.get_context("fork")
queue = fork.SimpleQueue()
process = fork.Process(target=calibrate, args=(model, queue))
process.start()
queue.get()
process.join()
model.eval()
print(model.running_mean)
""",
    ),
    Followed(
        "GG102",
        "torch.utils.data",
        ROWS_ONCE,
        {
            "compute what needs a gradient in the training loop": (
                ("return self.table(torch.tensor(i))", "return i"),
                ("rows.sum()", "table(rows).sum()"),
            ),
            "`num_workers=0`": (("num_workers=2", "num_workers=0"),),
        },
        EMBEDDED,
    ),
    Followed(
        "GG101",
        "torch.utils.data",
        ROWS_ONCE,
        {
            "`tensor.detach()`": (
                ("Rows(table)", "Rows(table.detach())"),
                ("rows.sum() + table[0].sum()", "table[index].sum()"),
                ("return self.table[i].detach()", "return i, self.table[i]"),
                ("for rows in", "for index, rows in"),
            ),
        },
        LEAF,
    ),
    Followed(
        "GG301",
        "transform",
        "[3.0, 3.0]",
        {
            "Open the transform inside the task": (
                ("delayed(part)", "delayed(jax.grad(part))"),
                ("jax.grad(total)", "total"),
            ),
            "Without workers": (
                (
                    "Parallel(n_jobs=2)(delayed(part)(x, k) for k in (1.0, 2.0))",
                    "part(x, k) for k in (1.0, 2.0)",
                ),
            ),
        },
        """\
import jax
import jax.numpy as jnp
from joblib import Parallel, delayed


def part(x, k):
    return jnp.sin(x * k).sum()


def total(x):
    return sum(Parallel(n_jobs=2)(delayed(part)(x, k) for k in (1.0, 2.0)))


print(jax.grad(total)(jnp.zeros(2)).tolist())
""",
        ("jax",),
        "note",
    ),
]
