"""Programs with a pitfall, each with the changes that its advice asks for, to the letter.

A way is a phrase of the advice and the replacements that follow it. The changed program prints what
one process would have: `right`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pytest_gradguard.pitfalls import get

Change = tuple[str, str]


class Followed(NamedTuple):
    """One advice, followed.

    Attributes:
        code: the pitfall.
        case: the case of its advice; empty: its own.
        right: what the program prints once the advice is followed.
        ways: by a phrase of the advice: what it asks for.
        bad: the program; by default that of the entry.
        needs: what has to be installed, further to torch and joblib.
        found_by: which side finds it; or it is a note beside the program's error.
    """

    code: str
    case: str
    right: str
    ways: dict[str, tuple[Change, ...]]
    bad: str = ""
    needs: tuple[str, ...] = ()
    found_by: Literal["guard", "lint", "note"] = "guard"

    @property
    def name(self) -> str:
        """Its name in the tests."""
        return " ".join(filter(None, (self.code, self.case)))

    @property
    def program(self) -> str:
        """The program with the pitfall."""
        return self.bad or get(self.code).bad


OURS = ("from joblib import Parallel, delayed", "from joblib import delayed\n"
        "from pytest_gradguard.parallel import Parallel")  # fmt: skip
THREADS = ("Parallel(n_jobs=2)", 'Parallel(n_jobs=2, backend="threading")')
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
FORKED = """\
import torch
{imports}


def work(size):
    return (torch.ones(size, size) @ torch.ones(size, size)).sum().item()


if __name__ == "__main__":
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)
{run}
    print(results)
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
DRAWN = """\
import random

import numpy as np
import torch
from joblib import Parallel, delayed


def draw(rng):
    return {draw}


rng = {made}
a, b = Parallel(n_jobs=2)(delayed(draw)(rng) for _ in range(2))
print(bool(a == b))
"""
SEEDED = """\
import random

import numpy
import torch
from joblib import Parallel, delayed


def sample(seed):
    {other}.seed(seed)
    return {draw}


first, _ = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)(k) for k in range(2))
second, _ = Parallel(n_jobs=2, backend="multiprocessing")(delayed(sample)(k) for k in range(2, 4))
print(first == second)
"""
RACE = """\
import random
import threading

import numpy as np
import torch
from joblib import Parallel, delayed

both_seeded = threading.Barrier(2)


def sample(seed):
    SEED
    both_seeded.wait()
    return DRAW


a, b = Parallel(n_jobs=2, backend="threading")(delayed(sample)(0) for _ in range(2))
print(a == b)
"""
IN_PROCESS = """\
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: queue.put(work(100)))
    process.start()
    results = [queue.get()]
    process.join()"""
ONE_THREAD = ("    return (torch", "    torch.set_num_threads(1)\n    return (torch")

FOLLOWED = [
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
        "GG206",
        "",
        "[6.0, 22.0]",
        {
            "`num_workers=0`": (("num_workers=1", "num_workers=0"),),
            '`multiprocessing_context="fork"`': (
                ("num_workers=1", 'num_workers=1, multiprocessing_context="fork"'),
            ),
            '`backend="threading"`': (THREADS,),
        },
    ),
    Followed(
        "GG306",
        "",
        "[2000000.0, 2000000.0]",
        {
            "`torch.tensor(array)`": (("torch.from_numpy(values)", "torch.tensor(values)"),),
            "`torch.from_numpy(array.copy())`": (
                ("torch.from_numpy(values)", "torch.from_numpy(values.copy())"),
            ),
            '`Parallel(..., mmap_mode="c")`': (("n_jobs=2", 'n_jobs=2, mmap_mode="c"'),),
            "`max_nbytes=None`": (("n_jobs=2", "n_jobs=2, max_nbytes=None"),),
        },
    ),
    *(
        Followed(
            "GG305",
            kind,
            "False",
            {
                f"from a seed per task: `{made}`": (
                    ("draw(rng)", "draw(seed)"),
                    ("    return", f"    rng = {made}\n    return"),
                    ("(rng) for _ in range(2)", "(seed) for seed in range(2)"),
                ),
            },
            DRAWN.format(made=made.replace("seed)", "0)"), draw=draw),
        )
        for kind, made, draw in (
            ("numpy.random.RandomState", "np.random.RandomState(seed)", "rng.random()"),
            ("random.Random", "random.Random(seed)", "rng.random()"),
            (
                "torch.Generator",
                "torch.Generator().manual_seed(seed)",
                "torch.rand(1, generator=rng)",
            ),
        )
    ),
    *(
        Followed(
            "GG304",
            f"only {name}",
            "False",
            {
                f"`{seeds}`": (("    return", f"    {seeds}\n    return"),),
            },
            SEEDED.format(other=other, draw=draw),
            found_by="lint",
        )
        for name, seeds, other, draw in (
            ("numpy", "numpy.random.seed(seed)", "random", "numpy.random.random()"),
            ("torch", "torch.manual_seed(seed)", "random", "torch.rand(1).item()"),
        )
    ),
    *(
        Followed(
            "GG308",
            name,
            "True",
            {
                f"`{made}`": (
                    (seeds, "rng = " + made),
                    (draw, own),
                ),
            },
            RACE.replace("DRAW", draw).replace("SEED", seeds),
        )
        for name, made, seeds, draw, own in (
            (
                "torch",
                "torch.Generator().manual_seed(seed)",
                "torch.manual_seed(seed)",
                "torch.rand(1).item()",
                "torch.rand(1, generator=rng).item()",
            ),
            (
                "numpy",
                "np.random.default_rng(seed)",
                "np.random.seed(seed)",
                "np.random.random()",
                "rng.random()",
            ),
            (
                "random",
                "random.Random(seed)",
                "random.seed(seed)",
                "random.random()",
                "rng.random()",
            ),
        )
    ),
    Followed(
        "GG202",
        "result",
        "cpu",
        {"`tensor.cpu()`": (("return values", "return values.cpu()"),)},
        """\
import torch
from joblib import Parallel, delayed


def double(size):
    values = torch.ones(size, device="cuda") * 2
    return values


print(Parallel(n_jobs=2)(delayed(double)(k) for k in (1, 2))[0].device)
""",
    ),
    Followed(
        "GG202",
        "model",
        "cpu",
        {
            "`copy.deepcopy(module).cpu()`": (
                ("delayed(first)(module)", "delayed(first)(copy.deepcopy(module).cpu())"),
                ("import torch", "import copy\n\nimport torch"),
            )
        },
        """\
import torch
from joblib import Parallel, delayed


def first(module):
    return next(module.parameters()).detach()


module = torch.nn.Linear(2, 1).cuda()
print(Parallel(n_jobs=2)(delayed(first)(module) for _ in range(2))[0].device)
""",
    ),
    Followed(
        "GG303",
        "joblib",
        "[1000000.0, 1000000.0]",
        {"Use the loky backend": ((', backend="multiprocessing"', ""),)},
        FORKED.format(
            imports="from joblib import Parallel, delayed",
            run='    pool = Parallel(n_jobs=2, backend="multiprocessing")\n'
            "    results = pool(delayed(work)(100) for _ in range(2))",
        ),
    ),
    *(
        Followed(
            "GG303",
            library,
            "[1000000.0, 1000000.0]",
            {
                f'`{library}.get_context("spawn")`': (
                    ("Pool(2)", f'{library}.get_context("spawn").Pool(2)'),
                ),
                "`torch.set_num_threads(1)`": (ONE_THREAD,),
            },
            FORKED.format(
                imports=f"import {library}\nfrom {library} import Pool",
                run="    with Pool(2) as pool:\n        results = pool.map(work, [100, 100])",
            ),
            found_by=found_by,
        )
        for library, found_by in (("multiprocessing", "guard"), ("torch.multiprocessing", "lint"))
    ),
    Followed(
        "GG303",
        "concurrent.futures",
        "[1000000.0, 1000000.0]",
        {
            '`mp_context=multiprocessing.get_context("spawn")`': (
                ("Executor(2)", 'Executor(2, mp_context=multiprocessing.get_context("spawn"))'),
            ),
        },
        FORKED.format(
            imports="import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor",
            run="    with ProcessPoolExecutor(2) as pool:\n"
            "        results = list(pool.map(work, [100, 100]))",
        ),
    ),
    Followed(
        "GG303",
        "local function",
        "[1000000.0]",
        {
            "Define the function at the top level": (
                (
                    "\n\nif __name__",
                    "\n\ndef put(queue):\n    queue.put(work(100))\n\n\nif __name__",
                ),
                (
                    "    torch.ones(2000",
                    '    multiprocessing.set_start_method("spawn")\n    torch.ones(2000',
                ),
                ("target=lambda: queue.put(work(100))", "target=put, args=(queue,)"),
            ),
        },
        FORKED.format(imports="import multiprocessing", run=IN_PROCESS),
        found_by="lint",
    ),
    Followed(
        "GG303",
        "datasets",
        "[1000000.0, 1000000.0]",
        {
            "`torch.set_num_threads(1)`": (
                ("        return {", "        torch.set_num_threads(1)\n        return {"),
            ),
            '`set_start_method("spawn")`': (
                (
                    "    torch.ones(2000",
                    '    multiprocess.set_start_method("spawn")\n    torch.ones(2000',
                ),
                ("from datasets", "import multiprocess\nfrom datasets"),
            ),
        },
        FORKED.format(
            imports="from datasets import Dataset\n\n\nclass Score:\n    def __call__(self, row):\n"
            '        return {"x": work(row["size"])}',
            run='    rows = Dataset.from_dict({"size": [100, 100]})\n'
            '    results = list(rows.map(Score(), num_proc=2)["x"])',
        ),
        ("datasets",),
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
        "GG305",
        "torch.utils.data",
        "False",
        {
            "in the `worker_init_fn`": (
                ("num_workers=2", "num_workers=2, worker_init_fn=make"),
                (
                    "class Rows",
                    "def make(worker):\n    data = torch.utils.data.get_worker_info().dataset\n"
                    "    data.rng = np.random.default_rng(torch.initial_seed())\n\n\nclass Rows",
                ),
            ),
        },
        """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return self.rng.random()


a, b = DataLoader(Rows(), batch_size=1, num_workers=2)
print((a == b).item())
""",
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

_GPU = "a real GPU, or a package that needs one"
_RANKS = "ranks: the guard cases of torch.distributed"
NOT_FOLLOWED = {
    "GG101 other arrays": "no array of another package is installed",
    "GG102 other arrays": "no array of another package is installed",
    "GG103 concurrent.futures": "torch refuses such results, and GG103 is not reached",
    "GG103 transform": "GG301 is the finding there, and its advice is followed",
    "GG106 shared memory": "case_left in the guard cases steps in the worker",
    **dict.fromkeys(
        [f"GG107 {case}" for case in ("tensorflow", "keras", "other arrays")],
        "for information only: nothing is wrong",
    ),
    **dict.fromkeys([f"GG201 {case}" for case in get("GG201").cases], _GPU),
    **dict.fromkeys(
        [f"GG202 {case}" for case in get("GG202").cases if case not in ("result", "model")], _GPU
    ),
    **dict.fromkeys([f"GG203 {case}" for case in get("GG203").cases], _GPU),
    **dict.fromkeys([f"GG204 {case}" for case in get("GG204").cases], _GPU),
    "GG303 torch.utils.data": "case_loader in the guard cases",
    "GG304 only random": "Python seeds it anew in a forked process",
    "GG304 only tensorflow": "as for NumPy and torch",
    "GG305 tensorflow.random.Generator": "as for NumPy and torch",
    "GG305 keras.random.SeedGenerator": "as for NumPy and torch",
    "GG308 tensorflow": "as for NumPy and torch",
    **dict.fromkeys(
        ["GG403 autotune", "GG403 shape", "GG404 tensorflow", "GG404 torch"],
        "the linter's repaired examples, tests/lint/test_repairs.py",
    ),
    **dict.fromkeys(
        [f"{code} {case}" for code in ("GG501", "GG502", "GG504") for case in get(code).cases],
        _RANKS,
    ),
}
"""The cases of advice that no program here follows, and why."""
