"""A fork while the parent's threads are up: the workers wait for them forever, or fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import takewhile

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Autograd, Compute, ComputeThreads, GpuUse
from gradguard_lint.fixes.changes import Fix, SetKeyword
from gradguard_lint.fixes.recipes import made_by
from gradguard_lint.fixes.spawning import advice_case, without_fork
from gradguard_lint.fixes.written import dotted, importing, keyword, spelled
from gradguard_lint.rules.base import Examples, Report, before_fork, come_to

CODE = "GG303"

_STARTED_AT_ONCE = frozenset({"tensorflow", "jax"})
"""The frameworks that start their threads with their first operation, however small it is."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        found = _found(call)
        if found is None:
            yield from _refused(call)
            continue
        first, task, work = found
        framework = work.payload.framework
        idle = first.payload.threads_only
        does = f"starts its threads ({first.what})" if idle else "computes"
        yield Report(
            call.site,
            f"`{task.function_of(work)}` computes with {framework} in {call.workers}, after the "
            f"parent has started {framework}'s compute threads: a fork does not copy these, and "
            "the worker can wait for them forever.",
            (
                *before_fork(call, first, f"{framework} {does} in the parent here"),
                *come_to(work, f"{framework} computes in the worker here"),
            ),
            call=call,
            when=work.when,
            case=advice_case(call),
            fix=without_fork(call) or _one_thread(call, framework),
        )


def _refused(call: ParallelCall) -> Iterator[Report]:
    """Autograd that was at work in the parent of a program with a GPU: it has threads there."""
    for first in call.certain(Autograd):
        for task in call.tasks:
            work = next(filter(partial(_takes_gradients, task, first), task.effects), None)
            if work is None:
                continue
            yield Report(
                call.site,
                f"`{task.function_of(work)}` takes gradients in {call.workers}, after the "
                "parent has taken some, in a program that uses a GPU: autograd has threads of its "
                "own there, which a fork does not copy, and refuses to run in the worker.",
                (
                    *before_fork(call, first, "autograd runs in the parent here"),
                    *come_to(work, "autograd runs in the worker here"),
                ),
                call=call,
                case=advice_case(call),
                fix=without_fork(call),
            )
            return


def _takes_gradients(task: TaskRun, first: Effect, work: Effect) -> bool:
    """Whether the task needs autograd on a way with `first`, and with a GPU in the parent alone."""
    if not isinstance(work.payload, Autograd) or not task.same_path(work, first):
        return False
    if any(effect.gpu_use in ("context", "work") for effect in task.effects):
        return False  # it fails for that (GG203)
    return any(
        gpu.gpu_use == "context" and task.same_path(work, gpu) for gpu in task.call.certain(GpuUse)
    )


def _one_thread(call: ParallelCall, framework: str) -> Fix | None:
    """Where the fork has to stay: workers that use one thread need none of the parent's."""
    node = made_by(call)
    if framework != "torch" or node is None or call.traits.maker is None or len(node.args) > 1:
        return None
    module = call.traits.maker.module
    maker = dotted(module, node.func) or ast.unparse(node.func)
    if call.library == "joblib" or not maker.endswith(("Pool", "ProcessPoolExecutor")):
        return None
    called = spelled(module, "torch.set_num_threads")
    imported = () if called else importing(module, "torch")
    if imported is None or keyword(node, "initializer") is not None:
        return None
    changes = (
        SetKeyword(module, node, "initializer", called or "torch.set_num_threads"),
        SetKeyword(module, node, "initargs", "(1,)"),
        *imported,
    )
    return Fix("unsafe", "let each worker compute in one thread", changes)


def _found(call: ParallelCall) -> tuple[Effect[Compute], TaskRun, Effect[Compute]] | None:
    """What the parent computed first, and the task that computes after it, on one way."""
    set_before = [effect.payload for effect in call.earlier(ComputeThreads)]
    limited = {it.framework for it in set_before if not it.several}
    if call.traits.prepared and not any(
        effect.payload.several
        for task in call.tasks
        for effect in of_kinds(task.effects, ComputeThreads)
    ):
        limited.add("torch")  # a loader's workers compute in one thread
    for first in sorted(call.certain(Compute), key=lambda it: it.payload.threads_only):
        framework = first.payload.framework
        small = not first.payload.threads_only and not first.payload.heavy
        if framework in limited or (small and framework not in _STARTED_AT_ONCE):
            continue
        if framework == "torch" and first.worker is not call.worker:
            continue  # its compute threads belong to the thread that computes, and none to others
        done = _compiled(call) if framework == "jax" else frozenset()
        for task in call.tasks:
            for work in _works(task, framework):
                if (work.payload.always or work.what not in done) and task.same_path(work, first):
                    return first, task, work
    return None


def _compiled(call: ParallelCall) -> frozenset[str]:
    """What the parent has run of JAX: a worker may do that again, as long as it is small."""
    return frozenset(it.what for it in call.earlier(Compute) if it.payload.framework == "jax")


def _leaves_threads(effect: Effect) -> bool:
    return not isinstance(effect.payload, ComputeThreads) or effect.payload.several


def _works(task: TaskRun, framework: str) -> Iterator[Effect[Compute]]:
    """The large computations of the task, until it limits its threads."""
    before = takewhile(_leaves_threads, task.effects)
    for effect in of_kinds(before, Compute):
        if effect.payload.heavy and effect.payload.framework == framework:
            yield effect


BAD: Examples = {
    "a loader, whose workers are told to use several threads": """\
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        matrix = torch.ones(600, 600)
        return float((matrix @ matrix)[0, 0]) * index


def with_threads(worker):
    torch.set_num_threads(2)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.ones(600, 600)
    warm = matrix @ matrix
    loader = DataLoader(
        Squares(), num_workers=2, worker_init_fn=with_threads, multiprocessing_context="fork"
    )
    print(list(loader))  # GG303
""",
    "matmul before and after": """\
import torch
from joblib import Parallel, delayed


def square(k):
    matrix = torch.ones(2000, 2000) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print(Parallel(n_jobs=2, backend="multiprocessing")(  # GG303
        delayed(square)(k) for k in range(2)
    ))  # repaired: [0.0, 8000000000.0]
""",
    "a fork that has to stay": """\
import multiprocessing

import torch


def square(k):
    matrix = torch.ones(scale, scale) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    scale = 2000
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    with multiprocessing.Pool(2) as pool:
        print(pool.map(square, range(2)))  # GG303, repaired: [0.0, 8000000000.0]
""",
    "a fork that has to stay, by other names": """\
from multiprocessing import Pool as Workers

import torch as T


def square(k):
    matrix = T.ones(scale, scale) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    scale = 2000
    warm = T.ones(2000, 2000) @ T.ones(2000, 2000)
    with Workers(
        processes=2,  # one a core
    ) as pool:
        print(pool.map(square, range(2)))  # GG303, repaired: [0.0, 8000000000.0]
""",
    "an initializer": """\
import multiprocessing

import torch


def begin(value):
    global scale
    scale = value


def square(k):
    matrix = torch.ones(scale, scale) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    with multiprocessing.get_context("fork").Pool(2, begin, (2000,)) as pool:
        print(pool.map(square, range(2)))  # GG303, repaired: [0.0, 8000000000.0]
""",
    "a process and its queue": """\
import multiprocessing as mp

import torch


def square(k, queue):
    matrix = torch.ones(2000, 2000) * k
    queue.put((matrix @ matrix).sum().item())


def main():
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    queue = mp.Queue()
    process = mp.Process(target=square, args=(1, queue))
    process.start()  # GG303
    print(queue.get())  # repaired: 8000000000.0
    process.join()


if __name__ == "__main__":
    main()
""",
    "a queue that is a global": """\
import multiprocessing

import torch

queue = multiprocessing.Queue()


def square(k):
    matrix = torch.ones(2000, 2000) * k
    queue.put((matrix @ matrix).sum().item())


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    process = multiprocessing.Process(target=square, args=(1,))
    process.start()  # GG303
    print(queue.get())
    process.join()
""",
    "gradients in the parent of a program with a GPU": """\
import multiprocessing

import torch
from torch import nn


def slope(k):
    weight = torch.tensor(float(k), requires_grad=True)
    (weight * weight).backward()
    return weight.grad.item()


if __name__ == "__main__":
    model = nn.Linear(2, 1).to("cuda")
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(slope, range(3)))  # GG303
""",
}

FIXED: Examples = {
    "matmul before and after": """\
import torch
from joblib import Parallel, delayed


def square(k):
    matrix = torch.ones(2000, 2000) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print(Parallel(n_jobs=2, backend="loky")(  # GG303
        delayed(square)(k) for k in range(2)
    ))  # repaired: [0.0, 8000000000.0]
""",
    "a fork that has to stay": """\
import multiprocessing

import torch


def square(k):
    matrix = torch.ones(scale, scale) * k
    return (matrix @ matrix).sum().item()


if __name__ == "__main__":
    scale = 2000
    warm = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    with multiprocessing.Pool(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        print(pool.map(square, range(2)))  # GG303, repaired: [0.0, 8000000000.0]
""",
    "a fork that has to stay, by other names": BAD[
        "a fork that has to stay, by other names"
    ].replace(
        "# one a core\n",
        "# one a core\n        initializer=T.set_num_threads,\n        initargs=(1,),\n",
    ),
    "an initializer": BAD["an initializer"].replace('"fork"', '"spawn"'),
    "a process and its queue": BAD["a process and its queue"]
    .replace("mp.Queue", 'mp.get_context("spawn").Queue')
    .replace("mp.Process", 'mp.get_context("spawn").Process'),
    "gradients in the parent of a program with a GPU": BAD[
        "gradients in the parent of a program with a GPU"
    ].replace('"fork"', '"spawn"'),
}

GOOD: Examples = {
    "a loader, whose workers compute in one thread": """\
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, device):
        self.device = device

    def __len__(self):
        return 4

    def __getitem__(self, index):
        matrix = torch.ones(600, 600, device=self.device)
        return float((matrix @ matrix)[0, 0]) * index


if __name__ == "__main__":
    matrix = torch.ones(600, 600)
    warm = matrix @ matrix
    print(list(DataLoader(Squares("cpu"), num_workers=2, multiprocessing_context="fork")))
""",
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
    "gradients in the workers alone, or without a GPU": """\
import multiprocessing

import torch
from torch import nn


def slope(k):
    weight = torch.tensor(float(k), requires_grad=True)
    (weight * weight).backward()
    return weight.grad.item()


if __name__ == "__main__":
    print(slope(1))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(slope, range(3)))
""",
    "gradients in the workers of a parent that only predicts on a GPU": """\
import multiprocessing

import torch
from torch import nn


def slope(k):
    weight = torch.tensor(float(k), requires_grad=True)
    (weight * weight).backward()
    return weight.grad.item()


if __name__ == "__main__":
    model = nn.Linear(2, 1).to("cuda")
    with torch.no_grad():
        print(model(torch.ones(1, 2, device="cuda")))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(slope, range(3)))
""",
}
