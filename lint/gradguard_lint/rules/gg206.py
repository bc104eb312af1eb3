"""A loader starts workers of its own in a process that cannot have any."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.values import Site, Thing
from gradguard_lint.engine.tree import TRIES
from gradguard_lint.fixes.changes import Change, Fix, RemoveArgument, Replace, SetKeyword
from gradguard_lint.fixes.written import is_open, keyword
from gradguard_lint.rules.base import Examples, Report, chain

CODE = "GG206"

_WORKERS = 5
"""The position of `num_workers`."""

_NEEDS_WORKERS = {"timeout": 9, "multiprocessing_context": 11}
"""Arguments that a loader without workers refuses, and their positions."""

_NEEDS_WORKERS_BY_NAME = (*_NEEDS_WORKERS, "persistent_workers", "prefetch_factor")


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        for effect in of_kinds(task.effects, LibraryUse):
            if effect.payload.use != "loader workers" or _is_caught(effect):
                continue
            for loader in effect.payload.values[0].things("loader"):
                why = _why_not(task, loader)
                if why is None:
                    continue
                yield Report(
                    loader.site or effect.site,
                    f"`{task.name}` iterates this DataLoader in {task.call.workers}, where it "
                    f"cannot start workers of its own: {why}",
                    (*chain(effect), Step(effect.site, "the loader is iterated here")),
                    call=task.call,
                    fix=_in_the_task(loader.site),
                )


def _why_not(task: TaskRun, loader: Thing) -> str | None:
    """Why the loader cannot start workers where the task runs; None where it may."""
    if task.call.traits.daemons:
        return "they are daemons, and Python does not let daemons start processes."
    if task.call.start != "loky":
        return None
    context = loader.part("multiprocessing_context")
    if context is None or context.is_none:
        return "loky's default start method does not work for a DataLoader."
    if context.constant in ("spawn", "forkserver"):
        return "workers spawned there exit as they start."
    return None


def _is_caught(effect: Effect) -> bool:
    """Whether the task may go on where the loader's workers cannot be started."""
    return any(map(_in_a_try, (effect.site, *(step.site for step in effect.chain))))


def _in_a_try(site: Site) -> bool:
    """Whether what `site` raises may be caught around it, and not raised again."""
    return any(
        any(_goes_on(handler) for handler in node.handlers)
        and node.body[0].lineno <= site.line <= (node.body[-1].end_lineno or site.line)
        for node in ast.walk(site.module.tree)
        if isinstance(node, TRIES)
    )


def _goes_on(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    names = {
        name.id
        for name in (caught.elts if isinstance(caught, ast.Tuple) else [caught])
        if isinstance(name, ast.Name)
    }
    catches = caught is None or not names.isdisjoint(_RAISED)
    return catches and not isinstance(handler.body[-1], ast.Raise)


_RAISED = ("AttributeError", "AssertionError", "RuntimeError", "Exception", "BaseException")
"""What catches the errors of loaders that cannot start their workers."""


def _in_the_task(site: Site | None) -> Fix | None:
    """The loader without workers: the task loads its data itself."""
    node = site.node if site is not None else None
    if site is None or not isinstance(node, ast.Call) or is_open(node):
        return None
    module = site.module
    changes: list[Change] = [SetKeyword(module, node, "num_workers", "0")]
    if keyword(node, "num_workers") is None:
        if len(node.args) <= _WORKERS:
            return None
        changes = [Replace(module, node.args[_WORKERS], "0")]
    changes += [
        RemoveArgument(module, node, name)
        for name in _NEEDS_WORKERS_BY_NAME
        if keyword(node, name) is not None
    ]
    changes += [
        Replace(module, node.args[position], "0" if name == "timeout" else "None")
        for name, position in _NEEDS_WORKERS.items()
        if position < len(node.args)
    ]
    return Fix("unsafe", "load the data in the task itself", tuple(changes))


BAD: Examples = {
    "in loky workers": """\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def total(values):
    loader = DataLoader(  # GG206
        TensorDataset(values), batch_size=2, num_workers=1, persistent_workers=True, timeout=60
    )
    return sum(batch.sum().item() for (batch,) in loader)


parts = torch.arange(8.0).split(4)
print(Parallel(n_jobs=2)(delayed(total)(part) for part in parts))  # repaired: [6.0, 22.0]
""",
    "in a pool, through a helper": """\
import multiprocessing

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader_of(values, workers=2):
    data = TensorDataset(values)
    return DataLoader(data, 2, False, None, None, workers, None, False, False, 60)  # GG206


def evaluate(k):
    total = 0.0
    for i, (batch,) in enumerate(loader_of(torch.arange(4.0) + k)):
        total += batch.sum().item()
    return total


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(evaluate, range(2)))  # repaired: [6.0, 10.0]
""",
    "in processes that are daemons": """\
import multiprocessing

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=2)  # GG206


def evaluate(queue):
    try:
        queue.put(sum(batch.sum().item() for (batch,) in loader))
    except Exception:
        queue.put(None)
        raise


class Evaluator(multiprocessing.Process):
    def __init__(self):
        super().__init__()
        self.daemon = True

    def run(self):
        print(len(list(DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=1))))  # GG206


def of_rank(rank):
    next(iter(DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=3)))  # GG206


if __name__ == "__main__":
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=evaluate, args=(queue,))
    process.daemon = True
    process.start()
    print(queue.get())
    evaluator = Evaluator()
    evaluator.start()
    torch.multiprocessing.spawn(of_rank, nprocs=2, daemon=True)
""",
    "a loader that is sent": """\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def evaluate(net, loader):
    with torch.no_grad():
        return sum(net(batch).sum().item() for (batch,) in loader)


net = torch.nn.Linear(1, 1)
data = TensorDataset(torch.ones(8, 1))
loader = DataLoader(data, batch_size=4, num_workers=2)  # GG206
scores = Parallel(n_jobs=2, backend="multiprocessing")(
    delayed(evaluate)(net, loader) for _ in range(2)
)
""",
}

FIXED: Examples = {
    "in loky workers": """\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def total(values):
    loader = DataLoader(  # GG206
        TensorDataset(values), batch_size=2, num_workers=0
    )
    return sum(batch.sum().item() for (batch,) in loader)


parts = torch.arange(8.0).split(4)
print(Parallel(n_jobs=2)(delayed(total)(part) for part in parts))  # repaired: [6.0, 22.0]
""",
    "in a pool, through a helper": BAD["in a pool, through a helper"].replace(
        "workers, None, False, False, 60)", "0, None, False, False, 0)"
    ),
    "in processes that are daemons": BAD["in processes that are daemons"]
    .replace("num_workers=1", "num_workers=0")
    .replace("num_workers=2", "num_workers=0")
    .replace("num_workers=3", "num_workers=0"),
    "a loader that is sent": BAD["a loader that is sent"].replace("workers=2", "workers=0"),
}

GOOD: Examples = {
    "no workers, or not in a task": """\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(8, 1))


def evaluate(k, workers=0):
    return sum(batch.sum().item() for (batch,) in DataLoader(data, num_workers=workers)) + k


def count(loader):
    return len(loader)


def forked(k):
    loader = DataLoader(data, num_workers=1, multiprocessing_context="fork")
    return sum(batch.sum().item() for (batch,) in loader) + k


loader = DataLoader(data, num_workers=2)
print(sum(batch.sum().item() for (batch,) in loader))
print(Parallel(n_jobs=2)(delayed(evaluate)(k) for k in range(2)))
print(Parallel(n_jobs=2)(delayed(count)(loader) for k in range(2)))
print(Parallel(n_jobs=2)(delayed(forked)(k) for k in range(2)))
""",
    "a task that goes on without workers": """\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(8, 1))


def total(loader):
    return sum(batch.sum().item() for (batch,) in loader)


def evaluate(k):
    try:
        return total(DataLoader(data, num_workers=2))
    except (AttributeError, AssertionError):
        return total(DataLoader(data, num_workers=0))


print(Parallel(n_jobs=2)(delayed(evaluate)(k) for k in range(2)))
""",
    "workers that may have workers": """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def evaluate(k):
    loader = DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=1)
    return sum(batch.sum().item() for (batch,) in loader) + k


if __name__ == "__main__":
    print(Parallel(n_jobs=2, prefer="threads")(delayed(evaluate)(k) for k in range(2)))
    print(Parallel(n_jobs=1)(delayed(evaluate)(k) for k in range(2)))
    with ProcessPoolExecutor() as pool:
        print(list(pool.map(evaluate, range(2))))
    process = multiprocessing.Process(target=evaluate, args=(1,), daemon=True)
    process.daemon = False
    process.start()
    process.join()
""",
}
