"""dask: its client, and immediate computations."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradguard_lint.domain.shapes import items, known_items, sequence
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Frame,
    Instance,
    Items,
    Table,
    TaskCall,
    Thing,
    Value,
    of,
)
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import dispatch_tasks, run_in_caller, tasks_in
from gradguard_lint.models.known import start_called
from gradguard_lint.models.rows import Row

CLIENT = (0, "dask client")
"""The place of the current client in the store."""

SCHEDULER = (0, "dask scheduler")
"""The place of the configured scheduler in the store."""


def dask_config(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.config.set(...)``: lasting, or for a block."""
    scheduler = args.get(None, "scheduler")
    for table in (args.get(0, "arg") or UNKNOWN).of(Table):
        scheduler = table.get("scheduler") or scheduler
    if scheduler is None:
        return UNKNOWN
    before = m.store.get(SCHEDULER)
    m.store[SCHEDULER] = scheduler
    return of(Thing("dask-config", name, parts=() if before is None else (("before", before),)))


def leave_config(m: Machine, config: Thing) -> None:
    """Exit a block of ``dask.config.set(...)``."""
    before = config.part("before")
    if before is None:
        m.store.drop(SCHEDULER)
    else:
        m.store[SCHEDULER] = before


def dask_compute(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.compute(...)``."""
    results = compute(m, frame, node, list(args.positional), args)
    direct = args.rest is not None or any(
        isinstance(atom, TaskCall) for value in args.positional for atom in value.atoms
    )
    return results if direct else of(Items("tuple", None, results))


def bag(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.bag.from_sequence(...)``: items, and the tasks for each."""
    return _bag(element_of(m, args.get(*row.argument) or UNKNOWN), ())


def _bag(element: Value, tasks: tuple[Value, ...]) -> Value:
    return of(Thing("bag", "bag", parts=(("element", element), ("tasks", items("list", tasks)))))


def bag_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """A method of a bag: further tasks, or the computation."""
    element = thing.part("element") or UNKNOWN
    tasks = known_items(thing.part("tasks") or UNKNOWN) or ()
    if name in ("compute", "take", "persist"):
        options = args if name == "compute" else Args(keywords=args.keywords)
        return compute(m, frame, node, list(tasks), options, start="dask")
    function = args.get(0)
    if function is None or function.is_none:
        return _bag(UNKNOWN, tasks)
    if name == "starmap":
        given = known_items(element) or (element_of(m, element),)
    elif name == "map_partitions":
        given = (sequence(element),)
    elif name in ("filter", "map", "remove"):
        given = (element,)
    else:
        return _bag(UNKNOWN, tasks)
    task = TaskCall(
        function,
        (*given, *args.positional[1:]),
        tuple(args.keywords.items()),
        m.site(frame, node),
        frozenset(range(len(given))),
        library="dask",
    )
    return _bag(element if name in ("filter", "remove") else UNKNOWN, (*tasks, of(task)))


def _tasks(m: Machine, values: Iterable[Value], seen: set[TaskCall]) -> Iterator[TaskCall]:
    """The tasks among `values` that were not `seen`, after the tasks that they depend on."""
    for value in values:
        for task in tasks_in(m, value):
            if task.library == "dask" and task not in seen:
                seen.add(task)
                given = (*task.args, *(given for _, given in task.keywords))
                yield from _tasks(m, given, seen)
                yield task


def compute(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: list[Value],
    args: Args,
    start: str | None = "thread",
) -> Value:
    """``dask.compute(*tasks)``: the tasks run in threads, or by the scheduler.

    `start`: the default start method.
    """
    every = values if args.rest is None else [*values, args.rest]
    tasks = list(_tasks(m, every, set()))
    scheduler = args.get(None, "scheduler")
    if scheduler is None:
        scheduler = m.store.get(SCHEDULER)
    meant = False
    if scheduler is not None:
        name = scheduler.constant
        start = {
            "processes": "dask",
            "multiprocessing": "dask",
            "threads": "thread",
            "threading": "thread",
        }.get(str(name))
    else:
        for client in (m.store.get(CLIENT) or UNKNOWN).of(Instance):
            method = m.read(client.ident, "_method")
            start = str(method.constant) if method is not None else start
            meant = (m.read(client.ident, "_meant") or NOTHING).constant is True
    if not tasks:
        return UNKNOWN
    if start is None:
        run_in_caller(m, frame, tasks)
        return UNKNOWN
    started = start_called(m, start)
    return sequence(dispatch_tasks(m, frame, node, tasks, started, "dask", meant=meant))
