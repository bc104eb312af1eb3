"""The parent seeds a global generator, and fresh worker processes draw from their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Draw, Seed
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.rules.base import Examples, Report, code, handed_out
from gradguard_lint.rules.seeds import FRESH, may_import, seeds_on_import

CODE = "GG307"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.kind != PROCESS or call.start not in FRESH or call.traits.prepared:
            continue
        for seed in call.earlier(Seed):
            framework = seed.payload.framework
            if seed.worker is not None or not framework or seed.payload.value.is_none:
                continue
            for task in call.tasks:
                draw = _unseeded(task, framework)
                if draw is None or may_import(program, task, seed):
                    continue
                if task.same_path(draw, seed) and not seeds_on_import(program, task, draw):
                    yield Report(
                        seed.site,
                        f"{code(seed.what)} seeds the generator of this process only: "
                        f"`{task.function_of(draw)}` draws in {call.workers}, whose generators are "
                        "seeded at random.",
                        (
                            *seed.chain,
                            handed_out(task),
                            Step(draw.site, f"{code(draw.what)} draws in the worker here"),
                        ),
                        call=call,
                    )
                    break


def _unseeded(task: TaskRun, framework: str) -> Effect[Draw] | None:
    """The first draw of the task from that generator, unless the task seeds it before."""
    unseeded = takewhile(lambda it: not _seeds(it, framework), task.effects)
    drawn = (it for it in of_kinds(unseeded, Draw) if it.payload.framework == framework)
    return next(drawn, None)


def _seeds(effect: Effect, framework: str) -> bool:
    return isinstance(effect.payload, Seed) and effect.payload.framework in (framework, "")


BAD: Examples = {
    "torch": """\
import torch
from joblib import Parallel, delayed


def sample(k):
    return (torch.randn(3) * k).tolist()


torch.manual_seed(0)  # GG307
print(Parallel(n_jobs=2)(delayed(sample)(k) for k in range(4)))
""",
    "NumPy, in a function that seeds all": """\
import random

import numpy as np
from joblib import Parallel, delayed


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)  # GG307


def bootstrap(data):
    return np.random.choice(data, len(data)).mean()


if __name__ == "__main__":
    set_seed(0)
    print(Parallel(n_jobs=-1)(delayed(bootstrap)([1, 2, 3]) for _ in range(4)))
""",
    "a spawned pool": """\
import multiprocessing
import random


def roll(k):
    return random.randint(1, 6) + k


if __name__ == "__main__":
    random.seed(7)  # GG307
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(roll, range(4)))
""",
}

GOOD: Examples = {
    "seeds that the tasks are given": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def sample(seed):
    torch.manual_seed(seed)
    return torch.randn(3).tolist()


def draw(seed):
    return np.random.default_rng(seed).normal()


def torch_draw(seed):
    return torch.randn(3, generator=torch.Generator().manual_seed(seed)).tolist()


torch.manual_seed(0)
np.random.seed(0)
seeds = torch.randint(2**31, (4,)).tolist()
print(Parallel(n_jobs=2)(delayed(sample)(seed) for seed in seeds))
print(Parallel(n_jobs=2)(delayed(draw)(seed) for seed in seeds))
print(Parallel(n_jobs=2)(delayed(torch_draw)(seed) for seed in seeds))
""",
    "another generator, or no fresh workers": """\
import random

import torch
from joblib import Parallel, delayed


def sample(k):
    return torch.randn(3).sum().item() + k


def shuffled(items):
    set_global_seeds(items)
    return random.sample(items, 2)


random.seed(0)
print(Parallel(n_jobs=2)(delayed(sample)(k) for k in range(4)))
print(Parallel(n_jobs=2)(delayed(shuffled)([k, 1, 2]) for k in range(4)))
torch.manual_seed(0)
print(Parallel(n_jobs=2, prefer="threads")(delayed(sample)(k) for k in range(4)))
print(Parallel(n_jobs=1)(delayed(sample)(k) for k in range(4)))
""",
}
