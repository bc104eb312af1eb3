"""A tensor with hooks, or a module that holds one, goes to workers: the hooks do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Backward, Graph, Hook, UnknownCall
from gradguard_lint.domain.values import Atom, Instance, Tensor, Thing, Unknown
from gradguard_lint.rules.base import (
    Examples,
    Report,
    as_written,
    capitalised,
    captures,
    code,
    place,
    sent_with,
)

CODE = "GG113"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        hooks = _hooks(task) if task.call.channel.ships else []
        if not hooks or _no_gradients(task):
            continue
        if task.own_pickling:
            continue  # it may put its hooks back on
        crossing = [
            (sent, path, atom)
            for sent, found in task.split_by_initializer(task.contents)
            for path, atom, _ in found
        ]
        crossing += [
            (task.task, path, atom)
            for path, value, _ in captures(program, task)
            for atom in value.atoms
        ]
        for sent, path, atom in crossing:
            hook = next((hook for hook in hooks if _holds(atom, hook)), None)
            if hook is not None:
                path = as_written(sent, path)
                named = capitalised(code(path))
                yield Report(
                    sent.site,
                    f"{named} goes to {task.call.workers} without its hooks: the hook registered "
                    f"at {place(hook.site, sent.site)} does not run in `{task.name}`.",
                    (Step(hook.site, "the hook is registered here"), sent_with(task, sent)),
                    call=task.call,
                    what=path,
                )
                break


def _hooks(task: TaskRun) -> list[Effect[Hook]]:
    """The hooks that are in place when the task is sent, and that the worker does not set again."""
    before = task.call.earlier(Hook)
    removed = _tensors(it for it in before if it.payload.removed)
    removed |= _tensors(it for it in of_kinds(task.effects, Hook) if not it.payload.removed)
    return [
        effect
        for effect in before
        if not effect.payload.removed and effect.worker is None
        if not _tensors([effect]) & removed and task.same_path(effect, effect)
    ]


def _tensors(effects: Iterable[Effect]) -> set[Atom | int]:
    """What the hooks of `effects` are on: identities, and what is not known otherwise."""
    return {
        atom.ident if isinstance(atom, Tensor) else atom
        for effect in effects
        for atom in effect.target.atoms
    }


def _no_gradients(task: TaskRun) -> bool:
    """Whether the worker is known to take no gradients, so that no hook could run there."""
    return task.known and not any(of_kinds(task.effects, Backward, Graph, UnknownCall))


def _holds(atom: Atom, hook: Effect) -> bool:
    """Whether pickling `atom` takes the tensor of `hook`."""
    for target in hook.target.atoms:
        if isinstance(target, Tensor):
            if target.ident <= 0 or not isinstance(atom, (Instance, Tensor, Thing)):
                continue
            if isinstance(atom, Thing) and atom.kind == "state":
                continue  # what it holds is detached
            kept = not isinstance(atom, Tensor) or atom.tracked  # else it was detached
            if atom.ident == target.ident and kept:
                return True
        elif isinstance(target, Unknown) and isinstance(atom, Unknown) and _within(target, atom):
            return True
    return False


def _within(part: Unknown, whole: Unknown) -> bool:
    """Whether `part` is `whole`, or an attribute or item of it."""
    key = part.key
    while isinstance(key, tuple) and key != whole.key and key[0] in ("attr", "item"):
        key = key[1]
    return key is not None and key == whole.key


BAD: Examples = {
    "gradients are clipped by hooks": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    net(batch).pow(2).mean().backward()
    return [p.grad for p in net.parameters()]


if __name__ == "__main__":
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for p in net.parameters():
        p.register_hook(lambda grad: grad.clamp(-1, 1))
    grads = Parallel(n_jobs=2)(
        delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2)  # GG113
    )
""",
    "a frozen row, in a class": """\
import torch
from joblib import Parallel, delayed


class Trainer:
    def __init__(self):
        self.net = torch.nn.Embedding(10, 3)
        self.net.weight.register_post_accumulate_grad_hook(self.freeze)

    def freeze(self, weight):
        weight.grad[0] = 0

    def step(self, index):
        self.net(index).sum().backward()
        return self.net.weight.grad

    def run(self):
        with Parallel(n_jobs=2) as parallel:
            return parallel(
                delayed(self.step)(torch.tensor([k])) for k in range(2)  # GG113
            )


Trainer().run()
""",
    "a tensor": """\
from concurrent.futures import ProcessPoolExecutor

import torch


def gradient(weights):
    weights.pow(2).sum().backward()
    return weights.grad


if __name__ == "__main__":
    weights = torch.ones(3, requires_grad=True)
    weights.register_hook(print)
    with ProcessPoolExecutor() as pool:
        print(pool.submit(gradient, weights).result())  # GG101 GG113
""",
}

GOOD: Examples = {
    "hooks that are removed first, or set in the worker": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    handle = net.weight.register_hook(lambda grad: grad * 2)
    net(batch).pow(2).mean().backward()
    handle.remove()
    return [p.grad for p in net.parameters()]


net = torch.nn.Linear(3, 1)
handles = [p.register_hook(print) for p in net.parameters()]
net(torch.ones(2, 3)).sum().backward()
for handle in handles:
    handle.remove()
grads = Parallel(n_jobs=2)(delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2))
""",
    "hooks of modules and of activations": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    net(batch).pow(2).mean().backward()
    return [p.grad for p in net.parameters()]


net = torch.nn.Linear(3, 1)
net.register_forward_hook(print)
net.register_full_backward_hook(print)
out = net(torch.ones(2, 3))
out.register_hook(print)
out.sum().backward()
grads = Parallel(n_jobs=2)(delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2))
""",
    "threads, and workers that only evaluate": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    net(batch).pow(2).mean().backward()


@torch.no_grad()
def score(net, batch):
    return net(batch).mean().item()


net = torch.nn.Linear(3, 1)
net.weight.register_hook(print)
Parallel(n_jobs=2, prefer="threads")(
    delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2)
)
scores = Parallel(n_jobs=2)(delayed(score)(net, torch.ones(2, 3)) for _ in range(2))
""",
    "hooks that are meant to stay": """\
import torch
from joblib import Parallel, delayed
from torch.utils.hooks import unserializable_hook


@unserializable_hook
def log(grad):
    print(grad.norm())


class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(3, 1)
        self.net.weight.register_hook(log)
        self.net.bias.register_hook(unserializable_hook(lambda grad: print(grad)))
        self.net.bias.register_hook(self.count)

    @torch.utils.hooks.unserializable_hook
    def count(self, grad):
        print(grad.numel())


def gradients(net, batch):
    net(batch).pow(2).mean().backward()
    return [p.grad for p in net.parameters()]


net = Trainer().net
grads = Parallel(n_jobs=2)(delayed(gradients)(net, torch.ones(2, 3)) for _ in range(2))
""",
}
