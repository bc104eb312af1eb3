"""A task chooses its GPU by the environment: in a reused worker the first choice stays."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, TaskRun, of_kinds
from gradguard_lint.domain.payloads import GpuChoice
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.unknowns import is_own
from gradguard_lint.domain.values import Class, Const, Unknown, Value
from gradguard_lint.rules.base import Examples, Report, chain, code

CODE = "GG204"


def check(program: Program) -> Iterator[Report]:
    # a process of one's own is the way to get a GPU of one's own
    tasks = [task for task in program.process_tasks() if not _is_alone(task)]
    values: dict[int, set[Value]] = {}
    for task in tasks:
        for effect in of_kinds(task.effects, GpuChoice):
            if effect.payload.by == "environment":
                values.setdefault(id(effect.site.node), set()).add(effect.payload.device)
    for task in tasks:
        for effect in of_kinds(task.effects[task.initialised :], GpuChoice):
            by = effect.payload.by
            if by == "environment" and not _always_the_same(values[id(effect.site.node)]):
                yield Report(
                    effect.site,
                    f"{code(effect.what)} has no effect in a worker that has already used CUDA: "
                    "a reused worker keeps the device of its first task.",
                    chain(effect),
                    call=task.call,
                )
                break
            if by == "configuration" and _depends_on_task(effect.payload.device):
                yield Report(
                    effect.site,
                    "The visible devices depend on the task, but a worker that has started "
                    "TensorFlow cannot change them: its second task raises RuntimeError.",
                    chain(effect),
                    call=task.call,
                    case="tensorflow",
                )
                break


def _is_alone(task: TaskRun) -> bool:
    """Whether the process ends with the task, or belongs to one actor."""
    return (
        task.call.traits.single or bool(task.call.traits.actor) or any(task.task.function.of(Class))
    )


def _always_the_same(values: set[Value]) -> bool:
    """Whether each task sets what the worker's other tasks set."""
    if all(map(is_own, values)):
        return True
    atoms = {atom for value in values for atom in value.atoms}
    return len(atoms) == 1 and all(isinstance(atom, Const) for atom in atoms)


def _depends_on_task(value: Value | None) -> bool:
    return value is not None and any(
        isinstance(atom, Unknown) and atom.key is None for atom in inner(value)
    )


BAD: Examples = {
    "a device for each task": """\
import os

import torch
from joblib import Parallel, delayed


def train(index):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index % 2)  # GG204
    return torch.ones(3, device="cuda").sum().item()  # GG201


scores = Parallel(n_jobs=2)(delayed(train)(index) for index in range(4))
""",
}

GOOD: Examples = {
    "before the workers start": """\
import os

from joblib import Parallel, delayed

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"


def work(index):
    return index ** 2


scores = Parallel(n_jobs=2)(delayed(work)(index) for index in range(4))
""",
    "no GPU for the workers": """\
import os

from joblib import Parallel, delayed


def work(index):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return index ** 2


scores = Parallel(n_jobs=2)(delayed(work)(index) for index in range(4))
""",
    "each actor for itself": """\
import os

import ray


@ray.remote
class Worker:
    def __init__(self, gpu):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)

    def see(self, gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))


for gpu in range(4):
    worker = Worker.remote(gpu)
    ray.get(worker.see.remote([gpu, gpu + 1]))
""",
}
