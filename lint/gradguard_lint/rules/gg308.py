"""Tasks in several threads seed one global generator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Draw, Seed
from gradguard_lint.rules.base import Examples, Report, chain, code, listed

CODE = "GG308"


def check(program: Program) -> Iterator[Report]:
    for task in program.thread_tasks():
        if (
            not task.call.many
            or task.call.start != "thread"
            or program.in_turn(task.call, _uses_generator)
        ):
            continue
        for first, *more in _together(_seeding(task)):
            frameworks = {effect.payload.framework for effect in (first, *more)}
            drawn = _drawn(task.call)
            if drawn.isdisjoint(frameworks) and (drawn or frameworks == {"random"}):
                continue  # nothing draws from what is seeded
            names = list(dict.fromkeys(code(effect.what) for effect in (first, *more)))
            what = f"what `{task.name}` draws"
            if not drawn:
                what = f"whatever `{task.name}` calls that draws"
            does = "seeds the generator" if len(names) == 1 else "seed the generators"
            yield Report(
                first.site,
                f"{listed(names)} {does} that all {task.call.workers} share: "
                f"{what} depends on when the other threads seed and draw.",
                (
                    *chain(first),
                    *(Step(effect.site, f"{code(effect.what)} seeds one, too") for effect in more),
                ),
                call=task.call,
                case=first.payload.framework if len(frameworks) == 1 else "",
            )


def _uses_generator(effect: Effect) -> bool:
    return isinstance(effect.payload, (Draw, Seed))


def _seeding(task: TaskRun) -> Iterator[Effect[Seed]]:
    """What the task seeds that other threads seed or draw from."""
    for effect in of_kinds(task.effects[task.initialised :], Seed):
        framework = effect.payload.framework
        if effect.modes.locked or not framework:
            continue
        if effect.payload.value.is_none:
            continue  # it is not to draw the same numbers again
        if task.task.repeated or _meets_another(task, framework):
            yield effect


def _together(effects: Iterable[Effect[Seed]]) -> list[list[Effect[Seed]]]:
    """The `effects` by the call of a function that has them: what seeds all generators is one."""
    groups: dict[tuple[object, ...], list[Effect[Seed]]] = {}
    for effect in effects:
        way = tuple(step.site for step in effect.chain)
        groups.setdefault((*way, effect.site.function, effect.site.module), []).append(effect)
    return list(groups.values())


def _drawn(call: ParallelCall) -> set[str]:
    """The frameworks whose global generators the tasks of the call draw from, as far as that
    shows; where nothing does, what draws is hidden in a library, which takes NumPy's or that of a
    framework."""
    return {
        effect.payload.framework
        for task in call.tasks
        for effect in of_kinds(task.effects[task.initialised :], Draw)
    }


def _meets_another(task: TaskRun, framework: str) -> bool:
    """Whether another task of the call seeds the same generator, or draws from it."""
    return any(
        isinstance(effect.payload, (Draw, Seed)) and effect.payload.framework == framework
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
    "a helper that seeds all": """\
import random

import numpy as np
import torch
from joblib import Parallel, delayed


def seed_everything(seed):
    random.seed(seed)  # GG308
    np.random.seed(seed)
    torch.manual_seed(seed)


def sample(seed):
    seed_everything(seed)
    return torch.randn(3).tolist(), np.random.rand(), random.random()


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
