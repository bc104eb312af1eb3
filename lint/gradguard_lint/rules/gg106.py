"""The backward runs in a process worker: the gradients stay with the worker's copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, Program, TaskRun, of_kinds
from gradguard_lint.domain.payloads import (
    Backward,
    Capture,
    Escape,
    GradClear,
    GradRead,
    GradWrite,
    MemoryUse,
    ModelChange,
    ModelUse,
    OptimizerStep,
    UnknownCall,
    Write,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    FIGURE,
    GRADIENT,
    NUMERIC,
    OUTPUT,
    Atom,
    Const,
    Instance,
    Items,
    Method,
    Site,
    Table,
    Tensor,
    Thing,
    Unknown,
    is_number,
    of,
)
from gradguard_lint.rules.base import Examples, Report, brought, chain, handed_out, place

CODE = "GG106"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        direct = _direct(task)
        if direct is not None:
            yield Report(
                task.task.site,
                f"`{direct}` runs on a copy in {task.call.workers}: the original in the parent "
                "does not change.",
                (handed_out(task),),
                call=task.call,
            )
            continue
        yield from _left_behind(program, task)


def _direct(task: TaskRun) -> str | None:
    for atom in task.task.function.atoms:
        if not isinstance(atom, Method):
            continue
        receiver = atom.receiver
        if (
            atom.name == "backward"
            and isinstance(receiver, Tensor)
            and (receiver.framework == "torch" and receiver.grad != "none")
        ):
            return "backward"
        if atom.name == "step" and isinstance(receiver, Thing) and receiver.kind == "optimizer":
            return "step"
    return None


def _left_behind(program: Program, task: TaskRun) -> Iterator[Report]:
    given = [*_had(task)]
    for made in program.process_tasks() if task.call.traits.actor else ():
        if made.call.ident == task.call.traits.actor:
            given += _had(made)
    shipped = {ident for _, own in given for ident in own}
    if not shipped or not (
        _returns_numbers(task) if task.call.channel.answers else _keeps(task, shipped)
    ):
        return
    if not all(map(_returns_numbers, program.of_actor(task.call.traits.actor))):
        return  # another method may give them back
    if any(map(_leaves_gradients, task.effects)):
        return
    cleared: set[int] = set()
    # What an actor has are copies of what it was made with.
    given_as = program.sent_back if task.call.traits.actor else {}
    for effect in task.effects:
        target = {given_as.get(ident, ident) for ident in idents(effect.target)}
        if isinstance(effect.payload, GradClear):
            cleared |= target
        if not isinstance(effect.payload, Backward) or "backward" not in effect.what:
            continue  # `autograd.grad` gives the gradients back, and leaves none
        reached = shipped & target
        if not reached:
            continue
        anew = all(_and_wholes(given, {part}) & cleared for part in reached)
        use = _used_by_parent(program, task, _and_wholes(given, reached), effect.site, anew=anew)
        if use is not None:
            yield Report(
                effect.site,
                f"The gradients of this backward pass stay in {task.call.workers}: `{task.name}` "
                f"does not return them, and {use}.",
                chain(effect),
                call=task.call,
            )
            return


def _had(task: TaskRun) -> Iterator[tuple[str, set[int]]]:
    """The paths and the identities of what of the parent's a task can train: what it is given, and
    what it takes from outside. Of that a worker has a copy, too, whether it is pickled, inherited
    or made by an import."""
    for path, atom, _ in task.given:
        if _trainable(atom):
            yield path, idents(of(atom))
    for effect in of_kinds(task.effects, Capture):
        for atom in brought(task, effect.payload.value):
            if _trainable(atom):
                yield effect.what, idents(of(atom))


def _and_wholes(given: list[tuple[str, set[int]]], reached: set[int]) -> set[int]:
    """These objects among those that a task has, and the modules that they are parts of."""
    parts = [path for path, own in given if own & reached]
    return reached.union(
        *(own for path, own in given if any(part.startswith(f"{path}.") for part in parts))
    )


def _trainable(atom: Atom) -> bool:
    if isinstance(atom, Tensor):
        return atom.framework == "torch" and atom.tracked
    if isinstance(atom, Instance):
        return atom.cls.what == "torch"
    return isinstance(atom, Thing) and atom.kind == "model"


def _returns_numbers(task: TaskRun) -> bool:
    """Whether all that comes back is known to be no gradient, parameter or model."""
    if task.result is None:
        return False
    for atom in inner(task.result):
        if isinstance(atom, Const):
            continue
        if is_number(atom):
            continue
        if isinstance(atom, Tensor):
            made_from = {atom.ident, *atom.sources}
            plain = not made_from.isdisjoint((OUTPUT, FIGURE)) or (
                atom.grad == "history" and not atom.ident
            )
            if plain and GRADIENT not in made_from:
                continue
            return False
        if isinstance(atom, (Items, Table)) or _counted(atom):
            continue
        return False
    return True


def _leaves_gradients(effect: Effect) -> bool:
    """Whether gradients are saved, or given to something unknown: the parent may read them from a
    file."""
    given = effect.payload
    reachable = given.reachable if isinstance(given, Escape) else ()
    return (isinstance(given, Escape) or _is_saved(effect)) and any(
        isinstance(atom, Tensor) and GRADIENT in (atom.ident, *atom.sources)
        for value in (effect.target, *reachable)
        for atom in inner(value)
    )


def _is_saved(effect: Effect) -> bool:
    return isinstance(effect.payload, ModelUse) and effect.payload.does == "save"


_LETS_OUT = (Escape, GradRead, GradWrite, ModelChange, OptimizerStep, UnknownCall, Write)


def _lets_out(effect: Effect) -> bool:
    """Whether it brings more than plain numbers out of a process that returns nothing: by shared
    memory, a queue or a file."""
    if isinstance(effect.payload, MemoryUse):
        return effect.payload.does == "written"
    return _is_saved(effect) or isinstance(effect.payload, _LETS_OUT)


def _keeps(task: TaskRun, shipped: set[int]) -> bool:
    """Whether the gradients of what is `shipped` certainly stay in the process that it is."""
    return task.known and not any(
        (_lets_out(effect) and not _is_empty(task, shipped, effect))
        or (isinstance(effect.payload, Backward) and "backward" not in effect.what)
        for effect in task.effects
    )


def _is_empty(task: TaskRun, shipped: set[int], effect: Effect) -> bool:
    """Whether what the worker gives to something unknown, or writes to, never comes to what it
    trains."""
    given = effect.payload
    if isinstance(given, Write) and not given.exact:
        return all(
            isinstance(atom, Tensor)
            and atom.born == task.ident
            and atom.ident not in atom.sources  # it has not arrived
            and (
                OUTPUT in (made_from := {atom.ident, *atom.sources})
                or shipped.isdisjoint(made_from)
            )
            for atom in effect.target.atoms
        )
    return (
        isinstance(given, Escape)
        and bool(given.reachable)
        and not any(
            (isinstance(atom, Thing) and atom.kind in ("model", "optimizer"))
            or (isinstance(atom, Tensor) and not _is_apart(shipped, atom))
            or (isinstance(atom, Instance) and (atom.cls.what or atom.born != task.ident))
            for value in given.reachable
            for atom in value.atoms
        )
    )


def _is_apart(shipped: set[int], tensor: Tensor) -> bool:
    """Whether `tensor` is none of what is `shipped`, nor a part or gradient of it."""
    if tensor.ident <= 0:
        return tensor.ident != GRADIENT
    return not tensor.tracked and shipped.isdisjoint((tensor.ident, *tensor.sources))


def _counted(atom: Atom) -> bool:
    """Whether `atom` is a count, a size, a type or a text that is not known."""
    key = atom.key if isinstance(atom, Unknown) else None
    if isinstance(key, tuple) and key[0] == "item":
        key = key[1]
    if isinstance(key, tuple) and key[0] == "call":
        key = key[1]
    if isinstance(key, tuple) and key[0] == "device-of":
        return True
    if isinstance(key, tuple) and key[0] == "attr":
        return key[2] in ("dtype", "layout", "device", "shape", "size", "dim", "ndim", "numel")
    return isinstance(key, tuple) and key[0] in (*NUMERIC, "text", "str")


def _used_by_parent(
    program: Program, task: TaskRun, reached: set[int], seen_from: Site, *, anew: bool
) -> str | None:
    """What the parent does without the gradients; None: it may have others, or want none.

    `anew`: the task clears those that it is given first. In place of the parent's own ones, if it
    has any, its gradients are not for the parent's step.
    """
    for effect in program.effects:
        if effect.worker is not None:
            continue
        if isinstance(effect.payload, GradWrite) and (
            effect.target.is_unknown or reached & idents(effect.target)
        ):
            return None  # it may have shared them, or brings them in
        if task.call.ident not in effect.calls or not reached & idents(effect.target):
            continue
        if not consistent(task.call.when, effect.when):
            continue  # the program comes to one or the other
        use = effect.payload
        if isinstance(use, Backward):
            return None  # from here on the parent has gradients of its own
        if task.call.ident not in effect.waits or not isinstance(use, (GradRead, OptimizerStep)):
            continue
        if anew and use.fresh:
            continue
        if isinstance(use, OptimizerStep):
            return f"the parent's optimizer steps without them ({place(effect.site, seen_from)})"
        if _is_read(effect):
            return f"the parent reads `.grad` ({place(effect.site, seen_from)})"
    return None


def _is_read(effect: Effect) -> bool:
    """Whether more is done with ``.grad`` than to clear it, or to ask if there is any."""
    node, statement = effect.site.node, effect.site.statement
    above = {
        part: around
        for around in ast.walk(statement if statement is not None else node)
        for part in ast.iter_child_nodes(around)
    }
    around = above.get(node)
    while isinstance(around, ast.NamedExpr) or (
        isinstance(around, ast.Attribute) and around.attr == "data"
    ):
        around = above.get(around)
    if isinstance(around, ast.Attribute):
        return not around.attr.endswith("_")  # it is changed in place
    if not isinstance(around, ast.Compare) or not isinstance(around.ops[0], (ast.Is, ast.IsNot)):
        return True
    return isinstance(statement, ast.Assert) and isinstance(around.ops[0], ast.IsNot)


BAD: Examples = {
    "loss.backward as the task": """\
import torch
from joblib import Parallel, delayed

weights = torch.ones(3, requires_grad=True)
losses = [(weights * k).sum() for k in range(3)]
Parallel(n_jobs=2)(delayed(loss.backward)() for loss in losses)  # GG101 GG106
""",
    "the optimizer steps in the parent": """\
import torch
from joblib import Parallel, delayed


def accumulate(net, batch):
    loss = net(batch).pow(2).mean()
    loss.backward()  # GG106
    return loss.item()


if __name__ == "__main__":
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        optimizer.zero_grad()
        losses = Parallel(n_jobs=2)(
            delayed(accumulate)(net, torch.ones(2, 3)) for _ in range(2)
        )
        optimizer.step()
""",
}

GOOD: Examples = {
    "gradients are returned": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    net(batch).pow(2).mean().backward()
    return [p.grad for p in net.parameters()]


net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
results = Parallel(n_jobs=2)(delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2))
for parameter, *grads in zip(net.parameters(), *results):
    parameter.grad = sum(grads)
optimizer.step()
""",
    "one model a worker": """\
import torch
from joblib import Parallel, delayed


def train(net, seed):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    return net.state_dict()


states = Parallel(n_jobs=2)(delayed(train)(torch.nn.Linear(3, 1), s) for s in range(2))
""",
    "the parent goes on with gradients of its own": """\
import torch
from joblib import Parallel, delayed


def score(net, x, rate):
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


net = torch.nn.Linear(3, 1)
x = torch.randn(8, 3)
rates = [0.1, 0.01]
scores = Parallel(n_jobs=2)(delayed(score)(net, x, rate) for rate in rates)
optimizer = torch.optim.SGD(net.parameters(), lr=rates[scores.index(min(scores))])
for _ in range(3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
""",
}
