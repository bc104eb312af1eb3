"""A fork while the parent's compute threads are up: the workers wait for them for ever."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.rules.base import Examples, Report, before, chain
from gradguard_lint.semantics.events import Effect, Program, Step, TaskRun

CODE = "GG303"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        limited = before(program, call, "set-threads")
        for task in call.tasks:
            work = _work(task)
            if work is None:
                continue
            framework = work.data["framework"]
            if any(effect.data["framework"] == framework for effect in limited):
                continue
            parent = [
                effect
                for effect in before(program, call, "compute")
                if effect.data["framework"] == framework
                and (effect.data["heavy"] or framework == "tensorflow")
            ]
            if parent:
                first = parent[0]
                yield Report(
                    call.site,
                    f"the parent's {framework} threads are up when these workers are forked: "
                    f"`{task.name}` computes with {framework} and can wait for them for ever.",
                    (Step(first.site, f"{framework} computes in the parent here"), *chain(work)),
                )
                break


def _work(task: TaskRun) -> Effect | None:
    """The first large computation of the task, unless it limits its threads before."""
    for effect in task.effects:
        if effect.kind == "set-threads":
            return None
        if effect.kind == "compute" and effect.data["heavy"]:
            return effect
    return None


BAD: Examples = {
    "matmul before and after": """\
import torch
from joblib import Parallel, delayed


def square(k):
    matrix = torch.ones(2000, 2000) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print(Parallel(n_jobs=2, backend="multiprocessing")(  # GG303
        delayed(square)(k) for k in range(4)
    ))
""",
}

GOOD: Examples = {
    "one thread a worker": """\
import torch
from joblib import Parallel, delayed


def square(k):
    torch.set_num_threads(1)
    matrix = torch.ones(2000, 2000) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print(Parallel(n_jobs=2, backend="multiprocessing")(delayed(square)(k) for k in range(4)))
""",
    "only NumPy in the workers": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def square(k):
    matrix = np.ones((2000, 2000)) * k
    return float((matrix @ matrix).sum())


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print(Parallel(n_jobs=2, backend="multiprocessing")(delayed(square)(k) for k in range(4)))
""",
}
