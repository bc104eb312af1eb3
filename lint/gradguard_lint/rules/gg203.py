"""CUDA is used in a forked worker although the parent has initialised it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import (
    NONE,
    WITH_A_GPU,
    AnyOf,
    Conditions,
    consistent,
)
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step
from gradguard_lint.domain.values import Choice, Tensor
from gradguard_lint.fixes.spawning import advice_case, without_fork
from gradguard_lint.rules.base import (
    Examples,
    Report,
    before_fork,
    code,
    come_to,
    handed_out,
    returns_to_gpu,
    started_cuda,
)

CODE = "GG203"


_INITIALISE = ("context", "named")
_AGAIN = (
    "initialised CUDA before the fork",
    "CUDA cannot be initialised again in a forked process",
)
_DID = {
    **dict.fromkeys(_INITIALISE, _AGAIN),
    "driver": (
        "called `{what}` before the fork, which starts the CUDA driver",
        "CUDA cannot be initialised in a forked process then",
    ),
    "": (  # autograd
        "took gradients before the fork, which starts the CUDA driver where there is a GPU",
        "CUDA cannot be initialised in a forked process then",
    ),
}
"""What the parent did that makes CUDA unusable in forked workers, and why they fail."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        found = _found(call) or _unpickled(call)
        if found is None:
            continue
        first, uses, used, when = found
        did, why = _DID[first.gpu_use]
        asked = {*call.before.get(first, NONE), *call.when, *when}
        off = _asks_for_switch(program, frozenset(asked))
        does = "initialises CUDA" if first.gpu_use in _INITIALISE else "starts the CUDA driver"
        before = f"{code(first.what)} {does} in the parent"
        default = _none_by_default(program, call)
        yield Report(
            call.site,
            f"{uses} in {call.workers}, but the parent {did.format(what=first.what)}: {why}."
            f"{default}",
            (*before_fork(call, first, before), *used),
            severity="warning" if default or off else None,
            call=call,
            when=when,
            case=advice_case(call),
            fix=without_fork(call),
        )


def _none_by_default(program: Program, call: ParallelCall) -> str:
    """That there are no such workers unless somebody sets an option, or an argument, which nobody
    here does."""
    for key, truth in call.chosen:
        if truth or not isinstance(key, tuple) or key[0] != "eq":
            continue
        about, value = key[1:]
        if program.defaults.get(about) == (value,):
            return f" By default, `{about[-1]}` is {value}: nothing is forked."
    return ""


def _asks_for_switch(program: Program, when: Conditions) -> bool:
    """Whether a switch that is off by default has to be on where `when` holds."""
    return any(
        truth
        and (
            all(_asks_for_switch(program, world) for world in key)
            if isinstance(key, AnyOf)
            else program.defaults.get(key) == (False,)
        )
        for key, truth in when
    )


Found = tuple[Effect, str, tuple[Step, ...], Conditions]
"""What the parent did first, what uses CUDA after it, on one way, how the program comes to that,
and what has to hold for it."""


def _found(call: ParallelCall) -> Found | None:
    """A task that uses CUDA."""
    for first in started_cuda(call):
        for task in call.tasks:
            for used in task.effects:
                if _uses(call, used) and task.same_path(used, first):
                    uses = come_to(used, f"{code(used.what)} uses CUDA in the worker")
                    return first, f"`{task.function_of(used)}` uses CUDA", uses, used.when
    return None


def _unpickled(call: ParallelCall) -> Found | None:
    """Something on a GPU that a task gets: unpickling it uses CUDA before the task begins."""
    for first in started_cuda(call, named=True):
        for task in call.tasks:
            crossing = {atom: path for path, atom, _ in task.contents if returns_to_gpu(atom)}
            for value in (*task.task.args, *(value for _, value in task.task.keywords)):
                paths = [crossing.get(it.atom) for it in value.choices if _holds(call, it)]
                if paths and paths[0] is not None and None not in paths:
                    return (
                        first,
                        f"`{paths[0]}`, which is on the GPU, is unpickled",
                        (handed_out(task),),
                        NONE,
                    )
    return None


def _holds(call: ParallelCall, choice: Choice) -> bool:
    """Whether an alternative may be what `call` has where there is a GPU."""
    atom = choice.atom
    when = choice.when | atom.cpu if isinstance(atom, Tensor) and not atom.gpu else choice.when
    return consistent(when, call.when | WITH_A_GPU)


def _uses(call: ParallelCall, effect: Effect) -> bool:
    """Whether `effect` needs CUDA: it says so, or certainly works on what lies on the GPU."""
    if effect.gpu_use == "work":
        return effect.when <= call.when | WITH_A_GPU
    return effect.gpu_use == "context"


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
    "the driver was asked": """\
import multiprocessing

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def work(k):
    return torch.ones(3, device=DEVICE).sum().item() * k  # GG201


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(3)))  # GG203
""",
    "gradients on the CPU first": """\
import multiprocessing

import torch
from torch import nn


def norm(values):
    return torch.tensor(values, device="cuda").norm().item()  # GG201


def train(model):
    model(torch.ones(2, 3)).sum().backward()


if __name__ == "__main__":
    train(nn.Linear(3, 1))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(norm, [[3.0, 4.0], [6.0, 8.0]]))  # GG203
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
    "the driver was asked": BAD["the driver was asked"].replace('"fork"', '"spawn"'),
    "gradients on the CPU first": BAD["gradients on the CPU first"].replace(
        "multiprocessing.Pool", 'multiprocessing.get_context("spawn").Pool'
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
    "asked before work on the CPU": """\
import multiprocessing

import torch


def work(k):
    return torch.ones(3).sum().item() * k


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("no GPU")
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(3)))
""",
}
