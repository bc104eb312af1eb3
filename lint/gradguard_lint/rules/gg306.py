"""A task writes, through torch, into the memory map that joblib made of an argument."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import MemoryUse, OptimizerStep
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Tensor, Unknown
from gradguard_lint.fixes.changes import Fix, Wrap
from gradguard_lint.fixes.later import reads_again
from gradguard_lint.rules.base import Examples, Report, captures, chain

CODE = "GG306"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if task.call.channel.maps is None:
            continue
        stepped = any(of_kinds(task.effects, OptimizerStep))
        for effect in of_kinds(task.effects, MemoryUse):
            does = effect.payload.does
            if does == "written" or (does == "parameter" and stepped):
                report = _report(program, task, effect)
                if report is not None:
                    yield report
                    break


def _report(program: Program, task: TaskRun, effect: Effect[MemoryUse]) -> Report | None:
    memory = _memory(effect)
    name = _mapped_argument(program, task, memory) if memory is not None else None
    if name is None or task.call.channel.maps is None:
        return None
    limit, mode = task.call.channel.maps
    called = name if name.startswith("argument ") else f"`{name}`"
    what = effect.what if effect.payload.does == "written" else "the optimizer"
    size = f"{limit // 1024:,} KiB" if limit % (1 << 20) else f"{limit >> 20} MiB"
    if mode == "r":
        message = (
            f"{what} writes to {called}, which is a read-only memory map in {task.call.workers}: "
            f"joblib maps each array above {size}. The write kills the worker"
            + (", and the call waits forever." if task.call.start == "fork" else ".")
        )
    else:
        message = (
            f"{what} writes to {called}, which is one file for all {task.call.workers} "
            f"(`mmap_mode={mode!r}`): the tasks overwrite each other's input."
        )
    trace = (
        Step(task.call.site, f"arrays above {size} go to {task.call.workers} as memory maps"),
        *chain(effect),
    )
    return Report(effect.site, message, trace, call=task.call, what=name, fix=_copied(task, memory))


def _memory(effect: Effect) -> Key:
    """The array whose memory is written to, where it is one."""
    found = {atom.memory for atom in effect.target.atoms if isinstance(atom, Tensor)}
    return found.pop() if len(found) == 1 else None


def _mapped_argument(program: Program, task: TaskRun, memory: Key) -> str | None:
    """What the array is called that is sent and large enough; None where that is not certain."""
    assert task.call.channel.maps is not None
    limit, mode = task.call.channel.maps
    found: list[tuple[str, tuple[int, ...], bool]] = []
    for path, atom, private in task.contents:
        if isinstance(atom, Tensor) and atom.framework == "numpy" and atom.memory == memory:
            found.append((path, atom.extent, private))
        elif isinstance(atom, Unknown) and atom.key == memory:
            found.append((path, (), private))
    if isinstance(memory, tuple) and memory[:2] == ("sent", task.ident):
        found.append((_parameter(task, memory[2]), (), bool(memory[3])))
    if task.call.start == "loky":
        found += [
            (path, atom.extent, False)
            for path, value, _ in captures(program, task)
            for atom in inner(value)
            if isinstance(atom, Tensor) and atom.memory == memory
        ]
    for _, extent, private in found:
        if prod(extent) <= limit if extent else private:
            return None
        if mode != "r" and (private or not task.call.many):
            return None  # one task has the file for itself
    return found[0][0] if found else None


def _parameter(task: TaskRun, name: object) -> str:
    """What the argument is called that nothing is known of."""
    if not isinstance(name, int):
        return str(name)
    return "".join(task.task.names[name : name + 1]) or f"argument {name + 1}"


def _copied(task: TaskRun, memory: Key) -> Fix | None:
    """A copy of the array for the task to write to."""
    made = [
        effect
        for effect in of_kinds(task.effects, MemoryUse)
        if effect.payload.does == "shared" and _memory(effect) == memory
    ]
    if not made or any(
        reads_again(site)  # and would see what is written
        for effect in made
        for site in (effect.site, *(step.site for step in effect.chain))
        if site != task.task.site
    ):
        return None
    changes = tuple(Wrap(effect.site.module, effect.site.node, after=".clone()") for effect in made)
    return Fix("unsafe", "write to a copy of the array", changes)


BAD: Examples = {
    "in place": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def scaled(values, k):
    tensor = torch.from_numpy(values)
    tensor.mul_(k)  # GG306
    return tensor.sum().item()


if __name__ == "__main__":
    values = np.ones((1000, 1000), dtype=np.float32)
    print(Parallel(n_jobs=2)(delayed(scaled)(values, k) for k in range(3)))
    # repaired: [0.0, 1000000.0, 2000000.0]
""",
    "a view, in a method, and a size that nobody knows": """\
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed


class Model:
    def __init__(self, path):
        self.data = np.load(path)

    def masked(self, k):
        rows = torch.as_tensor(self.data)[k:].view(-1)
        rows[0] = 0  # GG306
        return rows.sum().item()

    def run(self):
        return Parallel(n_jobs=2)(delayed(self.masked)(k) for k in range(3))


if __name__ == "__main__":
    for path in sorted(Path("data").glob("*.npy")):
        Model(path).run()
""",
    "a parameter that is trained": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def train(start, lr):
    weights = torch.nn.Parameter(torch.from_numpy(start))  # GG306
    optimizer = torch.optim.SGD([weights], lr=lr)
    weights.pow(2).sum().backward()
    optimizer.step()
    return weights.sum().item()


if __name__ == "__main__":
    start = np.ones(10**6)
    print(Parallel(n_jobs=2)(delayed(train)(start, lr) for lr in (0.25, 0.5)))
    # repaired: [500000.0, 0.0]
""",
    "what else reads the array": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def tensor_of(values):
    return torch.from_numpy(values)


def through_the_array(values):
    torch.from_numpy(values).mul_(2)  # GG306
    return values.sum()


def two_views(values):
    first, second = torch.from_numpy(values), torch.as_tensor(values)
    second.add_(1)  # GG306
    return first.sum().item()


def in_a_helper(values):
    tensor = tensor_of(values)
    tensor.add_(1)  # GG306
    return values.max()


def in_turns(values):
    for _ in range(2):
        tensor = torch.from_numpy(values).add_(1)  # GG306
    return tensor.sum().item()


if __name__ == "__main__":
    values = np.ones((1000, 1000))
    Parallel(n_jobs=2)(delayed(through_the_array)(values) for _ in range(2))
    Parallel(n_jobs=2)(delayed(two_views)(values) for _ in range(2))
    Parallel(n_jobs=2)(delayed(in_a_helper)(values) for _ in range(2))
    Parallel(n_jobs=2)(delayed(in_turns)(values) for _ in range(2))
""",
    "the shape, and one branch or the other": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def shifted(values, k):
    count = float(values.sum())
    if k:
        values = torch.from_numpy(values)
        values += k  # GG306
        return values.sum().item()
    tensor = torch.as_tensor(values)
    tensor *= 3
    return (tensor.sum() / len(values) / values.shape[1]).item() + count


if __name__ == "__main__":
    values = np.ones((1000, 1000))
    print(Parallel(n_jobs=2)(delayed(shifted)(values, k) for k in range(2)))
    # repaired: [1000003.0, 2000000.0]
""",
    "one file for all tasks": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def doubled(values):
    tensor = torch.from_numpy(values)
    tensor += tensor  # GG306
    return tensor.sum().item()


if __name__ == "__main__":
    values = np.ones(1 << 18)
    print(Parallel(n_jobs=2, mmap_mode="r+")(delayed(doubled)(values) for _ in range(2)))
    # repaired: [524288.0, 524288.0]
""",
}

FIXED: Examples = {
    name: re.sub(r"((?:from_numpy|as_tensor)\([\w.]+\))", r"\1.clone()", source)
    for name, source in BAD.items()
    if name != "what else reads the array"
}

GOOD: Examples = {
    "copies, and reading": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def copied(values, k):
    tensor = torch.tensor(values)
    tensor.mul_(k)
    other = torch.from_numpy(values.copy())
    other.add_(1)
    third = torch.from_numpy(values).clone()
    third[0] = 0
    fourth = torch.from_numpy(values.astype("float32"))
    fourth += 1
    return (tensor + other + third + fourth).sum().item()


def read(values, k):
    tensor = torch.from_numpy(values).unsqueeze_(0)
    out = tensor * k
    out.add_(1)
    weights = torch.nn.Parameter(torch.as_tensor(values))
    (weights * k).sum().backward()
    return (tensor @ out.T).sum().item()


if __name__ == "__main__":
    values = np.ones((1000, 1000))
    print(Parallel(n_jobs=2)(delayed(copied)(values, k) for k in range(3)))
    print(Parallel(n_jobs=2)(delayed(read)(values, k) for k in range(3)))
""",
    "no memory map": """\
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config


def scaled(values, k=2):
    return torch.from_numpy(values).mul_(k).sum().item()


if __name__ == "__main__":
    values = np.ones((1000, 1000))
    Parallel(n_jobs=2, max_nbytes=None)(delayed(scaled)(values, k) for k in range(3))
    Parallel(n_jobs=2, max_nbytes="100M")(delayed(scaled)(values, k) for k in range(3))
    Parallel(n_jobs=2, mmap_mode="c")(delayed(scaled)(values, k) for k in range(3))
    Parallel(n_jobs=2, prefer="threads")(delayed(scaled)(values.copy(), k) for k in range(3))
    with parallel_config("loky", max_nbytes=None):
        Parallel(n_jobs=2)(delayed(scaled)(values, k) for k in range(3))
    with ProcessPoolExecutor() as pool:
        print(list(pool.map(scaled, [values, values])))
""",
    "small arrays": """\
import numpy as np
import torch
from joblib import Parallel, delayed


def scaled(values, k):
    return torch.from_numpy(values).mul_(k).sum().item()


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10_000, 100))
    small = np.random.rand(300, 300).astype(np.float32)
    print(Parallel(n_jobs=2)(delayed(scaled)(row, 2) for row in rows))
    print(Parallel(n_jobs=2)(delayed(scaled)(rows[k], k) for k in range(3)))
    print(Parallel(n_jobs=2)(delayed(scaled)(small, k) for k in range(3)))
    print(Parallel(n_jobs=2)(delayed(scaled)(np.zeros((10, 10)), k) for k in range(3)))
    print(Parallel(n_jobs=2)(delayed(scaled)(part, 2) for part in np.array_split(rows, 100)))
""",
}
