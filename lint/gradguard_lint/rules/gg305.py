"""One generator object goes to several tasks: each gets a copy in the same state."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, Step, TaskRun
from gradguard_lint.domain.values import Thing
from gradguard_lint.fixes.changes import Change, Fix, Replace, Wrap
from gradguard_lint.fixes.recipes import argument, importing, source_of, spelled
from gradguard_lint.rules.base import Examples, Report, handed_out

CODE = "GG305"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if not task.call.many:
            continue
        draws = {
            effect.ident: effect
            for effect in reversed(task.effects)
            if effect.kind == "generator-draw"
        }
        for path, atom, private in task.contents:
            if not isinstance(atom, Thing) or atom.kind != "generator":
                continue
            if private and not _the_only_one(task, atom):
                continue
            draw = draws.get(atom.ident)
            if draw is not None and (task.task.repeated or _holders(task, atom.ident) > 1):
                yield Report(
                    task.task.site,
                    f"`{path}` is one generator for all tasks: each worker draws from a copy of "
                    "it, and every task gets the same numbers.",
                    (handed_out(task), Step(draw.site, f"`{task.name}` draws from it here")),
                    call=task.call,
                    case=atom.name,
                    fix=None if private else _one_each(task, path, atom),
                )
                break


def _the_only_one(task: TaskRun, generator: Thing) -> bool:
    """Whether all tasks have this generator, though each has an argument of its own: it is made
    once, where no loop and no function makes another."""
    site, call = generator.site, task.call.site
    if site is None or generator.part("once") is None:
        return False
    near = site.function is None or site.function == call.function
    return (site.module is call.module and near) and all(
        atom == generator
        for _, atom, _ in task.contents
        if isinstance(atom, Thing) and atom.kind in ("generator", "spawned")
    )


def _one_each(task: TaskRun, path: str, generator: Thing) -> Fix | None:
    """A generator of its own for each task, made from the one that they share."""
    site = task.task.site
    node = argument(site, path)
    if node is None:
        return None
    module, text = site.module, source_of(site.module, node)
    name = generator.name
    changes: tuple[Change, ...] | None
    if name in ("numpy.random.default_rng", "numpy.random.Generator"):
        changes = (Wrap(module, node, after=".spawn(1)[0]"),)
    elif name == "torch.Generator":
        imported = importing(module, "torch")
        draw = f"torch.randint(2**63 - 1, (), generator={text})"
        source = f"torch.Generator().manual_seed({draw}.item())"
        changes = None if imported is None else (Replace(module, node, source), *imported)
    else:
        seed = {"random.Random": "getrandbits(64)", "numpy.random.RandomState": "randint(2**31)"}
        made = spelled(module, name)
        if made is None or name not in seed:
            return None
        changes = (Replace(module, node, f"{made}({text}.{seed[name]})"),)
    if changes is None:
        return None
    return Fix("unsafe", "give each task its own generator", changes)


def _holders(task: TaskRun, ident: int) -> int:
    """How many tasks of the same call hold the generator."""
    return sum(
        any(isinstance(atom, Thing) and atom.ident == ident for _, atom, _ in other.contents)
        for other in task.call.tasks
    )


BAD: Examples = {
    "NumPy": """\
import numpy as np
from joblib import Parallel, delayed


def simulate(rng, k):
    return rng.normal()


rng = np.random.default_rng(0)
drawn = Parallel(n_jobs=2)(delayed(simulate)(rng, k) for k in range(4))  # GG305
print(len(set(drawn)))  # repaired: 4
""",
    "torch": """\
import torch
from joblib import Parallel, delayed


def simulate(k, generator=None):
    return torch.randn(1, generator=generator).item()


g = torch.Generator().manual_seed(0)
tasks = [
    delayed(simulate)(  # GG305
        k,
        generator=g,
    )
    for k in range(4)
]
print(len(set(Parallel(n_jobs=2)(tasks))))  # repaired: 4
""",
}

FIXED: Examples = {
    "NumPy": """\
import numpy as np
from joblib import Parallel, delayed


def simulate(rng, k):
    return rng.normal()


rng = np.random.default_rng(0)
drawn = Parallel(n_jobs=2)(delayed(simulate)(rng.spawn(1)[0], k) for k in range(4))  # GG305
print(len(set(drawn)))  # repaired: 4
""",
    "torch": """\
import torch
from joblib import Parallel, delayed


def simulate(k, generator=None):
    return torch.randn(1, generator=generator).item()


g = torch.Generator().manual_seed(0)
tasks = [
    delayed(simulate)(  # GG305
        k,
        generator=torch.Generator().manual_seed(torch.randint(2**63 - 1, (), generator=g).item()),
    )
    for k in range(4)
]
print(len(set(Parallel(n_jobs=2)(tasks))))  # repaired: 4
""",
}

GOOD: Examples = {
    "one for each": """\
import numpy as np
from joblib import Parallel, delayed


def simulate(rng, k):
    return rng.normal() + k


rngs = np.random.default_rng(0).spawn(4)
print(Parallel(n_jobs=2)(delayed(simulate)(rng, k) for k, rng in enumerate(rngs)))
print(Parallel(n_jobs=2)(
    delayed(simulate)(np.random.default_rng(k), k) for k in range(4)
))
""",
}
