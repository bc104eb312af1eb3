"""A process that the program starts itself tells which gradients it has kept: GG106.

It writes to a pipe as its function ends, and `worker_gradients` reads it when an optimizer steps.
What it puts into queues and connections after a backward pass counts as what a task returns; as
many such processes answer in a loop for as long as the program trains, it tells then, too. After
its first backward passes it tells what holds should it be killed before its end. What arrives
while it runs, `arrived` looks at.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import frameworks, pipes
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch.process_start import (
    hearing,
    package_of,
    ships_gradients,
    when_loaded,
)
from pytest_gradguard.runtime.kernel.faults import attempt, carried, hidden_frame
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.pitfalls.kept import backwards
from pytest_gradguard.runtime.pitfalls.kept.gg106 import Outcome, Told
from pytest_gradguard.runtime.pitfalls.lost import queue_puts

if TYPE_CHECKING:
    from pytest_gradguard.runtime.frameworks.torch.copies import Copies

_TORCH = "torch.nn.parameter"
_TORCH_IS_WHOLE = "torch.optim.optimizer"
"""A module that torch imports late."""
_HOME = "pytest_gradguard.runtime.pitfalls.kept.worker_gradients"  # it needs torch


def told(
    process: Any, call: Call, task: tuple[Any, Any, Any], *, forked: bool
) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; what it tells becomes evidence of `call`.

    None where there is nothing to tell.

    Args:
        process: the program's `Process`.
        call: the call that starts it.
        task: its function, and its arguments.
        forked: it inherits its arguments; else they are pickled.
    """
    overridden = "run" in vars(process)  # by the program, or by ours for CUDA
    if _TORCH not in sys.modules or "GG106" in call.dropped or (overridden and not forked):
        return None
    return hearing(
        process,
        lambda inner, write: Run(process, inner, write, task, call),
        lambda read: import_module(_HOME).expect(call, read),
    )


def ended() -> None:
    """A process has ended: take what it has told, and keep no pipe of it open."""
    home: Any = sys.modules.get(_HOME)
    if home is not None:
        home.hear()


class Run:
    """In place of the method `run` of a process.

    Args:
        process: the process.
        inner: what stands in that place already.
        write: where it tells.
        task: its function, and its arguments.
        call: the call that starts it, in the parent.
    """

    def __init__(
        self,
        process: Any,
        inner: Any,
        write: Any,
        task: tuple[Any, Any, Any],
        call: Call | None = None,
    ) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._task = task
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments of the process are pickled by now: it is the attribute set last.
        shipped = attempt(ships_gradients, self._call)
        if not (shipped or attempt(queue_puts.may_receive, package_of(self._process), self._task)):
            return getattr, (self._process, "run")
        return Run, (self._process, None, self._write, self._task)

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        work = work or functools.partial(type(self._process).run, self._process)
        watched: list[Watched] = []
        attempt(when_loaded, _TORCH_IS_WHOLE, functools.partial(self._watch, watched))
        try:
            with hidden_frame:
                return work() if self._inner is None else carried(work, self._inner)
        finally:
            for one in watched:
                attempt(one.tell)

    def _watch(self, watched: list[Watched]) -> None:
        one = Watched([self._task], self._write)
        _sends(package_of(self._process), one.sent).apply()
        watched.append(one)


class Watched:
    """What this process does with the tensors that it was given.

    Args:
        items: its function, and its arguments, as the only task.
        write: where it tells.
    """

    def __init__(self, items: list[tuple[Any, Any, Any]], write: Any) -> None:
        from pytest_gradguard.runtime.frameworks.torch import tensors
        from pytest_gradguard.runtime.frameworks.torch.copies import Copies
        from pytest_gradguard.runtime.pitfalls.kept.arrived import Arrived

        self._items = items
        self._write = write
        self._copies = Copies(self._items, shared=True)
        self._told: dict[int, Told] = {}
        self._reached = 0
        torch_engine.subscribe(self._backward)  # first: it is told last of the end of a pass
        backwards.watch(self._items, self._copies)
        self._arrived = Arrived(self._tell)
        frameworks.watch_reductions()
        tensors.pickled.append(self._pickled)

    def _backward(self, backward: torch_engine.Backward) -> torch_engine.End | None:
        return self._passed if backward.accumulates else None

    def _passed(self, _: Any, raised: BaseException | None) -> None:
        """Tell, after a pass that gave more tensors a gradient, what they are."""
        reached = sum(copy.digest is not None for copy in self._copies.every)
        if reached > self._reached:
            self._reached = reached
            self._tell(0, self._copies, certain=False)

    def _pickled(self, tensor: Any) -> None:
        self._copies.written(tensor)
        self._arrived.pickled(tensor)

    def sent(self, item: Any) -> None:
        """Take what goes to another process."""
        from pytest_gradguard.runtime.pitfalls.kept import returned

        if self._copies.passes:
            returned.send(self._copies, item)
            self._tell(0, self._copies)
        self._arrived.sent(item)

    def tell(self) -> None:
        """Tell the parent what stays here, at the end."""
        copies = backwards.take(self._items)
        if copies is not None:
            self._tell(0, copies)
        self._arrived.ended()

    def _tell(self, message: int, copies: Copies, certain: bool = True) -> None:
        from pytest_gradguard.runtime.pitfalls.kept import kept_gradients

        told = Told(kept_gradients.outcome_of(copies, self._items, ()), certain, message)
        if told != self._told.get(message, _NOTHING):
            self._told = {0: self._told.get(0, _NOTHING), message: told}
            with suppress(OSError):  # the program has closed what it knows nothing of
                pipes.tell(self._write.fileno(), told)


_NOTHING = Told(Outcome(None, []), True)


def _sends(package: str, take: Callable[[Any], None]) -> Patches:
    """Have `take` called with what is sent to other processes by what `package` has for that."""
    connection: Any = import_module(f"{package}.connection")
    queues: Any = import_module(f"{package}.queues")

    def look(sender: Any, item: Any, *args: Any, **kwargs: Any) -> None:
        module = caller().f_globals.get("__name__", "")
        if module == f"{package}.managers":  # a proxy sends its id, the method and the arguments
            take(item[2:])
        elif not module.startswith(f"{package}."):  # a queue sends what it was given
            take(item)

    base = connection.Connection.__base__
    places = [
        (queues.Queue, "put"),
        (queues.JoinableQueue, "put"),
        (queues.SimpleQueue, "put"),
        (base, "send"),
        (base, "send_bytes"),
    ]
    return Patches([observe(owner, name, before=look, inherited=True) for owner, name in places])
