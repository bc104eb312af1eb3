"""CUDA is used in a forked worker although the parent has initialised it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.rules.base import Examples, Report, before, chain
from gradguard_lint.semantics.events import Program, Step

CODE = "GG203"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        parent = before(program, call, "gpu-init")
        if not parent:
            continue
        for task in call.tasks:
            used = next((e for e in task.effects if e.kind == "gpu-init"), None)
            if used is not None:
                first = parent[0]
                yield Report(
                    call.site,
                    f"`{task.name}` uses CUDA in {call.workers}, but the parent initialised CUDA "
                    "before the fork: CUDA cannot be used in the children.",
                    (
                        Step(first.site, f"{first.what} initialises CUDA in the parent"),
                        *chain(used),
                    ),
                )
                break


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
