"""Tasks in several threads seed one global generator."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, TaskRun
from gradguard_lint.rules.base import Examples, Report, chain, code

CODE = "GG308"


def check(program: Program) -> Iterator[Report]:
    for task in program.thread_tasks():
        if not task.call.many or task.call.start != "thread":
            continue
        for effect in task.effects[task.initialised :]:
            if effect.kind != "seed" or effect.modes.locked or not effect.framework:
                continue
            if effect.value.is_none:
                continue  # it is not to draw the same numbers again
            if not task.task.repeated and not _meets_another(task, effect.framework):
                continue
            yield Report(
                effect.site,
                f"{code(effect.what)} seeds the generator that all {task.call.workers} share: "
                f"what `{task.name}` draws depends on when the other threads seed and draw.",
                chain(effect),
                call=task.call,
                case=effect.framework,
            )


def _meets_another(task: TaskRun, framework: str) -> bool:
    """Whether another task of the call seeds the same generator, or draws from it."""
    return any(
        effect.kind in ("seed", "draw") and effect.framework == framework
        for other in task.call.tasks
        if other is not task
        for effect in other.effects[other.initialised :]
    )


BAD: Examples = {
    "joblib": """\
import torch
from joblib import Parallel, delayed


def sample(seed):
    torch.manual_seed(seed)  # GG308
    return torch.randn(3).tolist()


print(Parallel(n_jobs=4, backend="threading")(delayed(sample)(seed) for seed in range(8)))
""",
    "an executor, through a helper": """\
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def seeded(seed):
    np.random.seed(seed)  # GG308


def simulate(seed):
    seeded(seed)
    return np.random.normal(size=3).sum()


with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(simulate, range(8))))
""",
}

GOOD: Examples = {
    "generators of their own, a lock, or one thread": """\
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from joblib import Parallel, delayed

lock = threading.Lock()


def own(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, generator=generator).tolist()


def locked(seed):
    with lock:
        torch.manual_seed(seed)
        return torch.randn(3).tolist()


def sample(seed):
    torch.manual_seed(seed)
    return torch.randn(3).tolist()


torch.manual_seed(0)
print(Parallel(n_jobs=4, prefer="threads")(delayed(own)(seed) for seed in range(8)))
print(Parallel(n_jobs=4, prefer="threads")(delayed(locked)(seed) for seed in range(8)))
print(Parallel(n_jobs=4)(delayed(sample)(seed) for seed in range(8)))
print(Parallel(n_jobs=1, prefer="threads")(delayed(sample)(seed) for seed in range(8)))
with ThreadPoolExecutor(max_workers=1) as pool:
    print(list(pool.map(sample, range(8))))
with ThreadPoolExecutor() as pool:
    print(pool.submit(sample, 0).result())
threads = [
    threading.Thread(target=torch.manual_seed, args=(0,)),
    threading.Thread(target=print, args=("nothing that draws",)),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
}
