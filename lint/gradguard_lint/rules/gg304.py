"""Forked workers draw from the global generator: all of them draw the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program
from gradguard_lint.rules.base import Examples, Report, chain, code

CODE = "GG304"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork" or not call.many or call.prepared:
            continue
        for task in call.tasks:
            seeded: set[str] = set()
            for effect in task.effects:
                if effect.kind == "seed":
                    seeded.add(effect.framework)
                if effect.kind != "draw" or effect.framework == "random":
                    continue
                if effect.framework in seeded or "" in seeded:
                    continue
                yield Report(
                    effect.site,
                    f"{code(effect.what)} draws from the global generator, and all "
                    f"{call.workers} start with a copy of its state: they draw the same numbers.",
                    chain(effect),
                    call=call,
                )
                break


BAD: Examples = {
    "NumPy in a pool": """\
from multiprocessing import Pool

import numpy as np


def simulate(k):
    return np.random.normal(size=3) + k  # GG304


if __name__ == "__main__":
    with Pool(4) as pool:
        print(pool.map(simulate, range(8)))
""",
    "torch under joblib's multiprocessing": """\
import torch
from joblib import Parallel, delayed


def simulate(k):
    return (torch.randn(3) + k).tolist()  # GG304


print(Parallel(n_jobs=2, backend="multiprocessing")(delayed(simulate)(k) for k in range(4)))
""",
}

GOOD: Examples = {
    "seeded by the task": """\
from multiprocessing import Pool

import numpy as np


def simulate(k):
    np.random.seed(k)
    return np.random.normal(size=3)


def with_its_own(k):
    return np.random.default_rng(k).normal(size=3)


if __name__ == "__main__":
    with Pool(4) as pool:
        print(pool.map(simulate, range(8)), pool.map(with_its_own, range(8)))
""",
    "loky": """\
import numpy as np
from joblib import Parallel, delayed


def simulate(k):
    return np.random.normal(size=3) + k


print(Parallel(n_jobs=2)(delayed(simulate)(k) for k in range(4)))
""",
}
