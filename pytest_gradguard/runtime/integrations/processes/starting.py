"""What is pickled as a process starts (spawn, forkserver), and what it tells.

`torch.multiprocessing.spawn` ends here, and so does what the initializer of a pool is given. A
forked process inherits everything, and nothing is pickled: there it is the hang that is looked for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.processes import process_notes
from pytest_gradguard.runtime.integrations.processes.launchers import task_behind
from pytest_gradguard.runtime.kernel import calls, collector, registry, task_seeds, transfer
from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, children, process_start, reporting
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    carried,
    fault,
    hidden_frame,
    theirs_only,
)
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import code_of
from pytest_gradguard.runtime.pitfalls.ddp import ranks
from pytest_gradguard.runtime.pitfalls.forks import forks
from pytest_gradguard.runtime.pitfalls.loaders import process_loaders

_PICKLING = ("spawn", "forkserver")


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.process`.

    Args:
        workers: the kind of workers that its processes are.
        module: the module.
    """
    children.process_modules.add(module.__name__)
    start = functools.partial(_watched_start, workers)
    return [
        Patch(module.BaseProcess, "start", start),
        observe(module.BaseProcess, "join", after=_joined),
    ]


def _watched_start(workers: Workers, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        method = attempt(start_method, self, instead="")
        wanted = method in _PICKLING or (method == "fork" and not attempt(is_pools, self))
        call = attempt(_begin, workers, self) if wanted else None
        with hidden_frame:
            if call is None:
                return original(self)
            if method == "fork":
                return carried(functools.partial(original, self), _start_forked, self, call)
            initialized = attempt(is_pools, self)
            with (
                Beside(_rank, self, call, forked=False),
                Beside(_loaders, self, call),
                Beside(_notes, self, call, forked=False),
                Beside(_shipping, self, call),
            ):
                original(self)
            if initialized and call.shipped:
                calls.initial[self] = call
        with theirs_only:
            attempt(call.announce)
        if not initialized:
            attempt(_started.__setitem__, self, (call, list(call.evidence)))
        return None

    return start


def _begin(workers: Workers, process: Any) -> Call | None:
    if is_pools(process):
        with task_seeds.unnumbered():
            return calling.begin(workers)
    # Processes that run one function, and none of which is joined before the last is started, are
    # what the tasks of one call are elsewhere.
    function = _task(process)[0]
    call = calling.begin(workers, single=code_of(function) or type(process))
    if call is not None:
        call.starts = True
    return call


def _start_forked(start: Callable[[], Any], process: Any, call: Call) -> Any:
    with (
        Beside(_rank, process, call, forked=True),
        Beside(_loaders, process, call),
        Beside(_notes, process, call, forked=True),
        Beside(_forking),
    ):
        outcome = start()
    attempt(_started.__setitem__, process, (call, ()))
    return outcome


def _loaders(process: Any, call: Call) -> Any:
    if is_pools(process):
        return None
    return process_loaders.reporting_context(process, call, _task(process)[0] or type(process).run)


def _notes(process: Any, call: Call, *, forked: bool) -> Any:
    if is_pools(process):
        return None
    return process_notes.told(process, call, _whole_task(process), forked=forked)


def _forking() -> Any:
    return forks.forking() if forks.may_hang() else None


def _shipping(process: Any, call: Call) -> Any:
    return transfer.during(TaskShipment(call, [_task(process)]))


def _whole_task(process: Any) -> tuple[Any, Any, Any]:
    function, args, kwargs = _task(process)
    if function is None:  # a class of the program's, whose objects hold what it works on
        function, args = type(process).run, ({**vars(process), "run": None},)
    return function, args, kwargs


def _rank(process: Any, call: Call, *, forked: bool) -> Any:
    if is_pools(process):
        return None
    return ranks.reporting_context(process, call, forked=forked)


def _joined(result: Any, process: Any, timeout: float | None = None) -> None:
    attempt(reporting.receive)
    attempt(_announce_more, process)
    attempt(ranks.ended, process)


_started: ByIdentity[tuple[Call, Collection[int]]] = dropped_at_end(ByIdentity())
"""By a process: the call that has started it, and the evidence that was announced since."""


def _announce_more(process: Any) -> None:
    started = _started.pop(process)
    if started is None:
        return
    call, before = started
    evidence = list(call.evidence.values())
    if process.exitcode is None:  # it may be joined again
        _started[process] = call, [id(one) for one in evidence if one.count]
    collector.announce(call.collector, [one for one in evidence if id(one) not in before])


def start_method(process: Any) -> str:
    """How `process` is started; empty where nobody knows."""
    try:
        method = getattr(process, "_start_method", "")
        if method is None:  # the default context's, whichever it is by now
            method = sys.modules[process_start.package_of(process)].get_start_method()
        return str(method)
    except Exception as error:
        fault(error)
        return ""


def is_pools(process: Any) -> bool:
    """Whether `process` works for a pool or an executor."""
    return _module_of(process._target) in registry.runners


def _module_of(target: Any) -> str:
    module = plain_attribute(target, "__module__")
    return module if type(module) is str else ""


def _task(process: Any) -> tuple[Any, Any, Any]:
    """The user's function in a process that is about to start, and its arguments."""
    target, args, kwargs = process._target, process._args, process._kwargs
    if is_pools(process) and len(args) > 3:
        return args[2], args[3], {}
    return task_behind(target, args, kwargs)
