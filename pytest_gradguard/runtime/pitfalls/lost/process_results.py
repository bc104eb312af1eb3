"""What a process that the program starts sends with a graph, where nothing refuses to pickle it.

Torch refuses that in the pickler of the standard `multiprocessing`. That of `multiprocess` drops
the graph silently, and so does the program's own pickling. Such tensors are told of by their
values, so that what is pickled stays as it is; `provenance` knows them again where they arrive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.copies import digest, leaves_behind
from pytest_gradguard.runtime.kernel import transfer
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.tasks import Task, task_of

_FRAMES = 30
"""How far it is looked for what pickles a tensor."""


class Sent(NamedTuple):
    """A tensor with a graph that was pickled, in plain values so that it can be pickled itself.

    Attributes:
        values: what tells which it is.
        note: what it is.
        handed: it went through a queue, a connection or a manager.
        leaves: by their ids, what tells which the leaves behind it are, where the process is forked
            and may have inherited them.
        lineage: that of the process.
    """

    values: str
    note: Object
    handed: bool
    leaves: dict[int, str]
    lineage: str


def watch(package: str, function: Any, forked: bool, tell: Callable[[Sent], None]) -> None:
    """Tell, from now on, what this process pickles with a graph.

    Args:
        package: of the process, whose queues and connections it uses.
        function: what the process runs.
        forked: it may have inherited leaves.
        tell: takes each of it.
    """
    task = task_of(function)

    def look(tensor: Any, *args: Any) -> None:
        by_the_program = transfer.active.transfer is None
        if by_the_program and tensors.requires_grad(tensor) and tensors.history(tensor) is not None:
            sent = _sent(tensor, task, package, forked)
            if sent is not None:
                tell(sent)

    Patches([observe(torch.Tensor, "__reduce_ex__", before=look)]).apply()


def _sent(tensor: Any, task: Task, package: str, forked: bool) -> Sent | None:
    values = digest(tensor)
    if values is None:
        return None
    whole = _handed_over(package)
    path, plain = "result", True
    if whole is not None:
        for deep in (False, True):
            found = tensors.find([("result", whole[0])], deep=deep)
            if id(tensor) in found:
                path, plain = found[id(tensor)], not deep
                break
    history = tensors.history(tensor)
    note = Object(
        path=path,
        task=task,
        description=tensors.describe(tensor),
        history=type(history).__name__,
        plain=plain,
    )
    leaves = leaves_behind(history) if forked else {}
    return Sent(values, note, whole is not None, leaves, LINEAGE)


def _handed_over(package: str) -> tuple[Any] | None:
    """What the queue, connection or manager is given whose pickling runs now; else None."""
    frame: Any = sys._getframe(3)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        module = frame.f_globals.get("__name__", "")
        if module == f"{package}.reduction" and frame.f_code.co_name == "dumps":
            by = frame.f_back
            if by is None or by.f_globals.get("__name__") not in _hands(package):
                return None
            whole = frame.f_locals.get("obj")
            of = by.f_back
            while of is not None and of.f_globals.get("__name__", "").startswith(_OURS):
                of = of.f_back
            if of is not None and of.f_globals.get("__name__") == f"{package}.managers":
                _, _, given, _ = whole  # what a proxy is asked: the method's last argument counts
                whole = given[-1] if given else None
            return (whole,)
        frame = frame.f_back
    return None


_OURS = "pytest_gradguard."


def _hands(package: str) -> tuple[str, ...]:
    return (f"{package}.connection", f"{package}.queues")
