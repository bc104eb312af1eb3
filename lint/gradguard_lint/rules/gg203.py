"""CUDA is used in a forked worker although the parent has initialised it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import GPU_PRESENT
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun
from gradguard_lint.fixes.spawning import without_fork
from gradguard_lint.rules.base import Examples, Report, code, way_to

CODE = "GG203"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        found = _found(call)
        if found is None:
            continue
        first, task, used = found
        yield Report(
            call.site,
            f"`{task.doer(used)}` uses CUDA in {call.workers}, but the parent initialised CUDA "
            "before the fork: CUDA cannot be initialised again in a forked process.",
            way_to(
                first,
                f"{code(first.what)} initialises CUDA in the parent, before the fork",
                used,
                f"{code(used.what)} uses CUDA in the worker",
            ),
            call=call,
            fix=without_fork(program, call),
        )


def _found(call: ParallelCall) -> tuple[Effect, TaskRun, Effect] | None:
    """What the parent did first, and the task that uses CUDA after it, on one way."""
    for first in call.earlier("gpu-init"):
        for task in call.tasks:
            for used in task.effects:
                if _uses(call, used) and task.meets(used, first):
                    return first, task, used
    return None


def _uses(call: ParallelCall, effect: Effect) -> bool:
    """Whether `effect` needs CUDA: it says so, or certainly works on what lies on the GPU."""
    if effect.kind == "gpu-used":
        return effect.when <= call.when | {(GPU_PRESENT, True)}
    return effect.kind == "gpu-init"


BAD: Examples = {
    "a pool after CUDA": """\
import multiprocessing

import torch


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k  # GG201


if __name__ == "__main__":
    base = torch.zeros(3).cuda()
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(3)))  # GG203
""",
    "a context in a variable, and a lock": """\
import multiprocessing

import torch


def work(k, lock):
    with lock:
        return torch.ones(3, device="cuda").sum().item() * k  # GG201


def main():
    base = torch.zeros(3).cuda()
    context = multiprocessing.get_context("fork")
    lock = context.Manager().Lock()
    with context.Pool(2) as pool:
        print(pool.starmap(work, [(k, lock) for k in range(3)]))  # GG203


if __name__ == "__main__":
    main()
""",
}

FIXED: Examples = {
    "a pool after CUDA": """\
import multiprocessing

import torch


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k  # GG201


if __name__ == "__main__":
    base = torch.zeros(3).cuda()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, range(3)))  # GG203
""",
    "a context in a variable, and a lock": BAD["a context in a variable, and a lock"].replace(
        '"fork"', '"spawn"'
    ),
}

GOOD: Examples = {
    "nothing on the GPU in the workers": """\
import multiprocessing

import torch


def work(k):
    return k * 2


if __name__ == "__main__":
    base = torch.zeros(3).cuda()
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(3)))
""",
}
