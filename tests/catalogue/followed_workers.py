"""Advice on forks, random numbers, GPUs and memory of workers, followed."""

from __future__ import annotations

from following import THREADS, Followed

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

WORKERS_AT_WORK = [
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
]
