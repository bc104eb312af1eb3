"""Forked workers draw from the global generator: all of them draw the same numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun
from gradguard_lint.domain.values import Site
from gradguard_lint.rules.base import Examples, Report, chain, code

CODE = "GG304"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork" or not call.many or call.prepared:
            continue
        for task in call.tasks:
            seeded: set[str] = set()
            alike: set[str] = set()
            for number, effect in enumerate(task.effects):
                if effect.kind == "seed":
                    by_initializer = number < task.initialised
                    same = by_initializer and effect.value.constant is not None
                    (alike if same else seeded).add(effect.framework)
                if effect.kind != "draw" or effect.framework == "random":
                    continue
                if effect.framework in seeded or "" in seeded:
                    continue
                if _seeds(task, effect.site):
                    continue  # each task makes a seed of its own of it
                if not call.answers and _moves_on(program, call, effect):
                    break
                there = effect.framework != "numpy" or call.earlier("generator-loaded")
                if effect.framework in alike:
                    state = f"the initializer seeds it alike in all {call.workers}"
                else:
                    once = "" if there else _ONCE_LOADED
                    state = f"all {call.workers} start with a copy of its state{once}"
                yield Report(
                    effect.site,
                    f"{code(effect.what)} draws from the global generator, and {state}: they draw "
                    "the same numbers.",
                    chain(effect),
                    call=call,
                )
                break


_ONCE_LOADED = (
    " wherever the parent has loaded `numpy.random` (NumPy 2 does at its first use, and so do "
    "pandas and scikit-learn)"
)


def _seeds(task: TaskRun, draw: Site) -> bool:
    """Whether what is drawn goes, with something else, to a call of the task that seeds."""
    for effect in task.effects:
        seed = effect.site.node
        if effect.kind != "seed" or effect.site.module is not draw.module:
            continue
        if not isinstance(seed, ast.Call) or all(part is not draw.node for part in ast.walk(seed)):
            continue
        drawn = set(ast.walk(draw.node))
        given = [part for item in seed.args for part in ast.walk(item) if part not in drawn]
        called = {part.func for part in given if isinstance(part, ast.Call)}
        return any(isinstance(part, ast.Name) and part not in called for part in given)
    return False


_LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def _moves_on(program: Program, call: ParallelCall, draw: Effect) -> bool:
    """Whether the parent draws or seeds between the forks of its processes, in their loop."""
    around = [
        node
        for node in ast.walk(call.site.module.tree)
        if isinstance(node, _LOOPS) and call.site.stands_in(node)
    ]

    def in_loop(site: Site) -> bool:
        same = site.module is call.site.module
        return same and any(site.stands_in(node) for node in around)

    return any(
        effect.worker is None
        and effect.kind in ("draw", "seed")
        and effect.framework == draw.framework
        and any(in_loop(site) for site in (effect.site, *(step.site for step in effect.chain)))
        for effect in program.effects
    ) or any(
        isinstance(node, ast.Call) and "seed" in ast.unparse(node.func).lower()
        for loop in around
        for node in ast.walk(loop)
    )


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


def from_one(k):
    np.random.seed(np.random.randint(5000) * (k + 1))
    return np.random.normal(size=3)


if __name__ == "__main__":
    with Pool(4) as pool:
        print(pool.map(simulate, range(8)), pool.map(with_its_own, range(8)))
        print(pool.map(from_one, range(8)))
""",
    "loky": """\
import numpy as np
from joblib import Parallel, delayed


def simulate(k):
    return np.random.normal(size=3) + k


print(Parallel(n_jobs=2)(delayed(simulate)(k) for k in range(4)))
""",
}
