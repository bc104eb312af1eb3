"""GG106: copies of shipped tensors that got a gradient in a worker which returns none of it.

Nothing is inspected before a backward pass has run in the worker.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.copies import Copies, Copy, digest
from pytest_gradguard.runtime.kernel import locate, used_globals
from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import mentions, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.kept import backwards, returned
from pytest_gradguard.runtime.pitfalls.kept.gg106 import KeptGradients, Outcome


def begin(asked: None, process: bool) -> After:
    """Inspect the tensors passed to the tasks of a batch, after these have run."""
    return inspect_batch


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Outcome | None:
    """Return what became of the gradients of a batch in which a backward pass has run."""
    copies = backwards.take(items)
    if copies is None or error is not None:
        return None
    outcome = outcome_of(copies, items, results)
    return outcome if outcome.left or outcome.returned else None


def outcome_of(copies: Copies, items: Any, results: Any) -> Outcome:
    """What became of the gradients that the tasks `items` computed."""
    kept = returned.find_kept(copies, results)
    left = _left_behind(kept, copies, items) if kept else None
    came_back = returned.find_returned(copies, results, kept)
    return Outcome(left, [one.digest or digest(one.tensor) or "" for one in came_back])


def _left_behind(kept: list[Copy], copies: Copies, items: Any) -> KeptGradients:
    """The gradients that the tasks `items` left here and that are not among their results."""
    function = _function_with(kept[0].tensor, items)
    owner = plain_attribute(function, "__self__")
    came_back = [copy.tensor for copy in copies.with_gradient if copy not in kept]
    for_inputs = not all(isinstance(one, torch.nn.Parameter) for one in came_back)
    direct = plain_attribute(function, "__name__") == "backward" and tensors.is_tensor(owner)
    return KeptGradients(
        task_of(function),
        {copy.digest or "": copy.gradient is None for copy in kept},
        direct,
        {id(copy.tensor): (copy.digest or "", copy.first) for copy in kept if copy.inherited},
        LINEAGE,
        for_inputs or copies.for_inputs,
        _clears(function),
        all(tensors.in_shared_memory(copy.tensor) for copy in kept),
    )


_CLEARING = frozenset({"zero_grad"})


def _clears(function: Any) -> bool:
    """Whether the code of a task clears gradients."""
    used = used_globals.uses_of(function).functions
    return any(mentions(one, _CLEARING) for one in (function, *used))


def _function_with(tensor: Any, items: Any) -> Any:
    """The function of the task that got `tensor`."""
    paths = locate.find(roots_of(items), lambda item: item is tensor)
    index = paths.get(id(tensor), "0|").partition("|")[0]
    return items[int(index)][0]


def on_note(call: Any, note: Outcome) -> None:
    """Record, in the parent, what became of the gradients in a worker of `call`."""
    from pytest_gradguard.runtime.pitfalls.kept import answers, worker_gradients

    if note.left is not None:
        worker_gradients.remember(call, note.left)
    if note.returned:
        answers.record_returned(call, note.returned)


def on_replaced(call: Any, note: Outcome, earlier: Outcome | None, running: bool) -> None:
    """Record what became of the gradients in a process that `call` has started."""
    from pytest_gradguard.runtime.pitfalls.kept import worker_gradients

    worker_gradients.replace(call, note, earlier, running=running)
