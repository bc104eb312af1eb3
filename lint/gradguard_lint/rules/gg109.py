"""A worker reads a module's global that the parent changed: the worker imported it afresh."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import Tensor, Thing, Value
from gradguard_lint.rules.base import Examples, Report, chain

CODE = "GG109"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if task.call.start in INHERITING:
            continue
        own: set[tuple[str, str]] = set()
        """The globals that the worker, or its initializer, set itself."""
        for effect in task.effects:
            if effect.kind == "global-change":
                own.add((effect.home, effect.what))
            if effect.kind != "capture" or not effect.is_global:
                continue
            home = effect.home
            if home == program.entry or not _trainable(effect.value):
                continue
            if (home, effect.what) in own:
                continue
            change = _change(task, effect, home)
            if change is not None:
                yield Report(
                    effect.site,
                    f"`{effect.what}` is a global of `{home}`, which {task.call.workers} import "
                    f"again: `{task.name}` does not see what the parent has changed since its "
                    "own import.",
                    (*chain(effect), Step(change.site, f"`{effect.what}` is changed here")),
                    call=task.call,
                )
                break


def _trainable(value: Value) -> bool:
    return any(
        isinstance(atom, Tensor)
        or (
            isinstance(atom, Thing)
            and atom.kind in ("model", "keras-model", "keras-layer", "optimizer")
        )
        for atom in value.atoms
    )


def _change(task: TaskRun, read: Effect, home: str) -> Effect | None:
    wanted = idents(read.value)
    for effect in task.call.earlier(
        "global-change", "in-place", "exact-write", "model-change", "step"
    ):
        if not effect.chain and effect.site.module.name == home:
            continue  # the module's own body, which the worker runs too
        if effect.kind == "global-change":
            if effect.what == read.what and effect.home == home:
                return effect
        elif wanted & idents(effect.target):
            return effect
    return None


BAD: Examples = {
    "loaded after import": """\
import torch
from joblib import Parallel, delayed

import store


def main(path):
    store.net.load_state_dict(torch.load(path))
    return Parallel(n_jobs=2)(delayed(store.predict)([float(k)]) for k in range(3))


if __name__ == "__main__":
    main("weights.pt")
# file: store.py
import torch

net = torch.nn.Linear(1, 1)


def predict(row):
    with torch.no_grad():
        return net(torch.tensor(row)).item()  # GG109
""",
}

GOOD: Examples = {
    "handed over": """\
import torch
from joblib import Parallel, delayed

import store


def main(path):
    store.net.load_state_dict(torch.load(path))
    return Parallel(n_jobs=2)(delayed(store.predict)(store.net, [float(k)]) for k in range(3))


if __name__ == "__main__":
    main("weights.pt")
# file: store.py
import torch

net = torch.nn.Linear(1, 1)


def predict(model, row):
    with torch.no_grad():
        return model(torch.tensor(row)).item()
""",
}
