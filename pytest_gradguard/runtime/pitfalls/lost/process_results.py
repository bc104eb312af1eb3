"""Tensors with a graph that a worker itself pickles without an error: the graph is dropped.

The results of tasks are recorded as they are pickled. Other ways out are files, results as bytes,
and queues or pipes of the program. Torch refuses such tensors in the pickler of the standard
`multiprocessing`; `multiprocess` drops the graph silently, and so does the program's own pickling.
They are reported by digest, so that the pickled bytes are unchanged; `arriving` recognizes them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.copies import digest, leaves_behind
from pytest_gradguard.runtime.kernel import frameworks, probes, running
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.lost.gg103 import Sent

_FRAMES = 30
"""How many frames are searched for what pickles a tensor."""
_MOST = 64
"""How many tensors are reported for one batch of tasks."""


# -- in a process that the program started --------------------------------------------------------


def watch(package: str, function: Any, tell: Callable[[Sent], None]) -> None:
    """Report, from now on, the tensors with a graph that this process pickles.

    Args:
        package: of the process, whose queues and connections it uses.
        function: the process's function.
        tell: called with each tensor.
    """
    task = task_of(function)

    def look(tensor: Any) -> None:
        sent = _sent(tensor, task, package) if _loses_a_graph(tensor) else None
        if sent is not None:
            tell(sent)

    frameworks.watch_reductions()
    tensors.pickled.subscribe(look, lasting=True)


# -- in a worker that runs tasks -------------------------------------------------------------------


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pickled: list[Sent] = []


_thread = _Thread()


def apply() -> None:
    """Record, from now on, what the tasks of this worker pickle."""
    frameworks.watch_reductions()
    tensors.pickled.subscribe(_pickled)


def _pickled(tensor: Any) -> None:
    batches = running.batches()
    if not (batches and len(_thread.pickled) < _MOST and _loses_a_graph(tensor)):
        return
    sent = _sent(tensor, task_of(*batches[-1][0]))
    if sent is not None:
        _thread.pickled.append(sent)
        probes.activate("gg103")


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> list[Sent] | None:
    """Return the tensors with a graph that the tasks of a batch have pickled."""
    pickled, _thread.pickled = _thread.pickled, []
    return pickled or None


def on_note(call: Any, note: list[Sent]) -> None:
    """Record, in the parent, what tasks of `call` have pickled, in case it arrives here."""
    from pytest_gradguard.runtime.pitfalls.lost import arriving

    for sent in note:
        arriving.remember_sent(call, sent)


# -- in both ---------------------------------------------------------------------------------------


def _loses_a_graph(tensor: Any) -> bool:
    return tensors.requires_grad(tensor) and tensors.history(tensor) is not None


def _sent(tensor: Any, task: Task, package: str | None = None) -> Sent | None:
    values = digest(tensor)
    if values is None:
        return None
    whole = None if package is None else _handed_over(package)
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
    return Sent(values, note, whole is not None, leaves_behind(history), LINEAGE)


def _handed_over(package: str) -> tuple[Any] | None:
    """The item being pickled now by a queue, connection or manager; otherwise None."""
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
                _, _, given, _ = whole  # a proxy's call: the last argument of its method counts
                whole = given[-1] if given else None
            return (whole,)
        frame = frame.f_back
    return None


_OURS = "pytest_gradguard."


def _hands(package: str) -> tuple[str, ...]:
    return (f"{package}.connection", f"{package}.queues")
