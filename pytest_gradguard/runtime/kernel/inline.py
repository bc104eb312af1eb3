"""Runs the work of workers in the calling process, for the second run of `gradguard compare`.

Each integration has patches by which its tasks run here, immediately and in order (`inline` of an
`Integration`). They are applied on top of the watching patches, so that calls begin and are
numbered as usual.
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
    """Limits what a task changes here to what it would change from its own process."""

    def process(self) -> Any:
        """The private state of a process that runs tasks one after the other."""
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
            inherited: a forked process would inherit its data; otherwise that is pickled.
            process: the `process` that it is for, if all of its tasks run in one.
        """
        return run(task)

    def copied(self, item: Any) -> Any:
        """A copy of `item` as a process would have it; objects with gradients are not copied."""
        return item

    def pickled(self, item: Any) -> Any:
        """A copy of `item` by pickling; functions and objects with gradients are not copied."""
        return item

    def sent(self, item: Any) -> Any:
        """The copy of `item` that arrives if the running task sends it to the program itself."""
        return item


class Blocked(BaseException):
    """A task cannot run here: it waits for a later or an external event."""


def _raise(why: str) -> NoReturn:
    raise Blocked(why)


class _State:
    """The state of inline running.

    Attributes:
        depth: how many tasks run here now, nested.
        handed: how many tasks ran here instead of in a worker.
        refused: work that could not be done here, each with its line.
        unordered: the lines at which results come in order of completion.
        kept: state that tasks have left only in their workers' copies, in words.
        isolation: how tasks for processes run.
        give_up: called with the reason, if a task cannot run here after all.
        started: the line that started the process whose function runs now; otherwise empty.
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
    """Run the function of a process that `call` starts."""
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
    """The work of a thread that draws from the generators as they are, done, as a future."""
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
    """The user's current line, for messages; empty without one."""
    site = callsite.user_site()
    if site is None:
        return ""
    location = site.location()
    return display_place(location.path, location.line)


def refuse(what: str) -> None:
    """Record that `what`, which the program does now, is done as in the first run."""
    state.refused[" at ".join(filter(None, (what, place())))] = None


def note_shipped(workers: Workers) -> None:
    """Record that a task goes to a worker although tasks run inline: its library has no patches."""
    if state.active:
        refuse(f"a task for {workers.name} workers")


def note_unordered(what: str) -> None:
    """Record that the order of the results of `what` in workers depends on timing."""
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
    """Call `apply` now, if `module` is loaded, and at each import of it; adds it to `awaited`."""
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
    """A block in which torch computes in as many threads as in a worker; None: unchanged."""
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
