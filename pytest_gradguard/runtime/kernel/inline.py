"""The work of workers, done in the calling process: how `gradguard compare` runs a program again.

Each integration has patches by which its tasks run here, at once and in their order (`inline` of an
`Integration`). They stand above the patches that watch, so that a call is begun and numbered as it
is elsewhere.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from pytest_gradguard import imports
from pytest_gradguard.findings import display_place
from pytest_gradguard.runtime.kernel import callsite, registry, task_seeds
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.registry import Integration, Workers

Task = tuple[Any, Any, Any]
"""A function, its arguments and its keywords."""
Run = Callable[[Task], Any]


class Isolation:
    """Has a task change no more here than it would from the process that it is for."""

    def process(self) -> Any:
        """What a process would have of its own that runs tasks one after the other."""
        return None

    def run(
        self,
        workers: Workers,
        task: Task,
        run: Run,
        *,
        inherited: bool = False,
        process: Any = None,
    ) -> Any:
        """Run `task`, by `run`.

        Args:
            workers: the kind of workers that it is for.
            task: the task.
            run: runs it.
            inherited: a forked process would inherit what it works on; else that is pickled.
            process: the `process` that it is for, where all of its tasks run in one.
        """
        return run(task)

    def copied(self, item: Any) -> Any:
        """A copy of `item` such as a process would have; what carries gradients is the same."""
        return item

    def pickled(self, item: Any) -> Any:
        """A copy of `item` by pickling; functions, and what carries gradients, are the same."""
        return item

    def sent(self, item: Any) -> Any:
        """What arrives of `item`, which the task that runs sends to the program by itself."""
        return item


class Blocked(BaseException):
    """A task cannot be run here: it waits for something that comes later, or from elsewhere."""


def _raise(why: str) -> NoReturn:
    raise Blocked(why)


class _State:
    """What this process does inline.

    Attributes:
        depth: how many tasks run here now, one in the other.
        handed: how many tasks were run here instead of in a worker.
        refused: what could not be done here, each with its line.
        unordered: the lines at which results come in the order in which they are ready.
        kept: what tasks have left in their workers' copies alone, in words.
        isolation: how tasks for processes run.
        give_up: called with the reason, where a task cannot be run here after all.
        started: the line at which a process was started whose function runs now; else empty.
        active: tasks run inline now.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.handed = 0
        self.refused: dict[str, None] = {}
        self.unordered: dict[str, None] = {}
        self.kept: dict[str, None] = {}
        self.isolation = Isolation()
        self.give_up: Callable[[str], object] = _raise
        self.started = ""
        self.active = False


state = _State()


class _Thread(threading.local):
    tasks = 0


_thread = _Thread()


def in_task() -> bool:
    """Whether this thread runs a task inline."""
    return _thread.tasks > 0


@contextmanager
def within() -> Iterator[None]:
    """A block in which this thread runs a task."""
    _thread.tasks += 1
    state.depth += 1
    try:
        yield
    finally:
        _thread.tasks -= 1
        state.depth -= 1


def run(
    workers: Workers,
    call: Call | None,
    function: Any,
    args: Any,
    kwargs: Any,
    process: Any = None,
) -> Any:
    """Run the next task of `call` here, and return its result.

    Args:
        workers: the kind of workers that it is for.
        call: the call; None: the task is not seeded.
        function: the task's function.
        args: its arguments.
        kwargs: its keywords.
        process: as for `Isolation.run`.
    """
    state.handed += 1
    numbers = None if call is None else task_seeds.ship(call, (None,))
    seeded = function if numbers is None else task_seeds.Seeded(function, numbers)
    task = (seeded, args, kwargs)
    with within():
        if workers.carries == "thread":
            return _call(task)
        return state.isolation.run(workers, task, _call, process=process)


def run_process(workers: Workers, call: Call, run: Callable[[], Any], forked: bool) -> Any:
    """Run what a process does that `call` starts."""
    state.handed += 1
    state.started = place()
    with within(), task_seeds.as_process(task_seeds.start(call, None, forked)):
        result = state.isolation.run(workers, (run, (), {}), _call, inherited=forked)
    state.started = ""
    return result


def future(workers: Workers, call: Call, function: Any, args: Any, kwargs: Any) -> Future[Any]:
    """The next task of `call`, done, as a future."""
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()
    try:
        done.set_result(run(workers, call, function, args, kwargs))
    except Exception as error:
        done.set_exception(error)
    return done


def unseeded(work: Callable[[], Any]) -> Future[Any]:
    """What a thread does that draws from the generators as they are, done, as a future."""
    state.handed += 1
    done: Future[Any] = Future()
    with within():
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
    return done


def _call(task: Task) -> Any:
    function, args, kwargs = task
    return function(*args, **kwargs)


def place() -> str:
    """The user's line that is running, for messages; empty where there is none."""
    site = callsite.user_site()
    if site is None:
        return ""
    location = site.location()
    return display_place(location.path, location.line)


def refuse(what: str) -> None:
    """Say that `what`, which the program does now, is done as in the first run."""
    state.refused[" at ".join(filter(None, (what, place())))] = None


def note_shipped(workers: Workers) -> None:
    """Say that a task goes to a worker, where tasks are run inline: its library has no way to."""
    if state.active:
        refuse(f"a task for {workers.name} workers")


def note_unordered(what: str) -> None:
    """Say that the order of the results of `what` is up to chance in workers."""
    state.unordered[" at ".join(filter(None, (what, place())))] = None


@contextmanager
def active(isolation: Isolation, left: Sequence[str] = ()) -> Iterator[_State]:
    """A block in which all tasks of this process run inline.

    Args:
        isolation: how tasks for processes run.
        left: names of integrations whose tasks go to their workers.
    """
    state.__init__()  # type: ignore[misc]
    state.isolation = isolation
    state.active = True
    applied: list[Patches] = []
    awaited: list[Callable[[], object]] = []

    def apply(integration: Integration) -> None:
        if integration.name not in left:
            for module, make in integration.inline.items():
                once_imported(module, functools.partial(_patch, module, make, applied), awaited)

    for one in list(registry.registered.values()):
        apply(one.integration)
    registry.when_registered.append(apply)
    try:
        yield state
    finally:
        state.active = False
        registry.when_registered.remove(apply)
        for callback in awaited:
            imports.forget(callback)
        for patches in reversed(applied):
            patches.undo()


def once_imported(
    module: str, apply: Callable[[], object], awaited: list[Callable[[], object]]
) -> None:
    """Call `apply` now, where `module` is loaded, and whenever it is; what is `awaited` grows."""
    if module in sys.modules:
        apply()
    awaited.append(apply)
    imports.call_after(module, apply)


def _patch(
    module: str, make: Callable[[ModuleType], Sequence[Patch]], applied: list[Patches]
) -> None:
    patches = Patches(list(make(sys.modules[module])), lasting=True)
    applied.append(patches)
    patches.apply()


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """A block in which torch computes in as many threads as in a worker; None: as it does here."""
    torch: Any = sys.modules.get("torch")
    if number is None or torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_initialized: weakref.WeakSet[Any] = weakref.WeakSet()


def initialize(pool: Any, workers: Workers, call: Call, initializer: Any, args: Any) -> None:
    """Run the initializer of the workers of `pool` here, once, before its first task."""
    if initializer is not None and pool not in _initialized:
        _initialized.add(pool)
        with within(), task_seeds.as_process(task_seeds.start(call, None, workers.forks)):
            initializer(*args)
