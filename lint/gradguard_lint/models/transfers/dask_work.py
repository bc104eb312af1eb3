"""dask: its client, and what it computes at once."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import items, known_items, sequence
from gradguard_lint.domain.values import (
    UNKNOWN,
    Frame,
    Items,
    TaskCall,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import hand_out, in_line, tasks_in
from gradguard_lint.models.known import start_called
from gradguard_lint.models.rows import Row


def client(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Client(...)``: from here on, dask computes with it."""
    processes = args.get(None, "processes")
    local = processes is not None and False in processes.constants()
    address = args.get(0, "address")
    for thing in address.things("cluster") if address is not None else ():
        part = thing.part("local")
        local = part is not None and bool(part.constant)
    start = constant("dask-threads" if local else row.start)
    m.store[0, "dask client"] = start
    return of(
        Thing(
            "executor",
            name,
            m.ident_at(node),
            parts=(("start", start),),
            site=m.site(frame, node),
        )
    )


def cluster(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``LocalCluster(...)``."""
    processes = args.get(None, "processes")
    local = processes is not None and False in processes.constants()
    return of(Thing("cluster", name, parts=(("local", constant(local)),)))


def config(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.config.set(...)``."""
    scheduler = args.get(None, "scheduler")
    if scheduler is None:
        return UNKNOWN
    return of(Thing("dask-config", name, parts=(("scheduler", scheduler),)))


def compute_all(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.compute(...)``."""
    results = compute(m, frame, node, list(args.positional), args)
    direct = args.rest is not None or any(
        isinstance(atom, TaskCall) for value in args.positional for atom in value.atoms
    )
    return results if direct else of(Items("tuple", None, results))


def bag(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dask.bag.from_sequence(...)``: items, and what is to be done with each."""
    return _bag(m.element(args.get(*row.argument) or UNKNOWN), ())


def _bag(element: Value, tasks: tuple[Value, ...]) -> Value:
    return of(Thing("bag", "bag", parts=(("element", element), ("tasks", items("list", tasks)))))


def bag_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """A method of a bag: what is further to be done, or the computation."""
    element = thing.part("element") or UNKNOWN
    tasks = known_items(thing.part("tasks") or UNKNOWN) or ()
    if name in ("compute", "take", "persist"):
        options = args if name == "compute" else Args(keywords=args.keywords)
        return compute(m, frame, node, list(tasks), options, start="dask")
    hands = BAGS.get(name)
    function = args.get(0)
    if hands is None or function is None or function.is_none:
        return _bag(UNKNOWN, tasks)
    given = {"one": (element,), "packed": (sequence(element),)}.get(hands) or (
        known_items(element) or (m.element(element),)
    )
    task = TaskCall(
        function,
        (*given, *args.positional[1:]),
        tuple(args.keywords.items()),
        m.site(frame, node),
        frozenset(range(len(given))),
        library="dask",
    )
    return _bag(element if name in ("filter", "remove") else UNKNOWN, (*tasks, of(task)))


BAGS = {
    "filter": "one",
    "map": "one",
    "map_partitions": "packed",
    "remove": "one",
    "starmap": "unpacked",
}
"""How the methods of a bag give its items to a function."""


def compute(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: list[Value],
    args: Args,
    start: str | None = "thread",
) -> Value:
    """``dask.compute(*tasks)``: the tasks run in threads, or where the scheduler says.

    `start`: how the workers come into being where nothing says.
    """
    tasks = [task for value in values for task in tasks_in(m, value) if task.library == "dask"]
    if args.rest is not None:
        tasks += [task for task in tasks_in(m, args.rest) if task.library == "dask"]
    scheduler = args.get(None, "scheduler")
    if scheduler is None:
        scheduler = m.store.get((0, "dask scheduler"))
    if scheduler is not None:
        name = scheduler.constant
        start = {
            "processes": "dask",
            "multiprocessing": "dask",
            "threads": "thread",
            "threading": "thread",
        }.get(str(name))
    else:
        client = m.store.get((0, "dask client"))
        if client is not None:
            start = str(client.constant)
    if not tasks:
        return UNKNOWN
    if start is None:
        in_line(m, frame, tasks)
        return UNKNOWN
    return sequence(hand_out(m, frame, node, tasks, start_called(m, start), "dask"))
