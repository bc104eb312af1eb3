"""Processes that are started one by one, or several for one function."""

from __future__ import annotations

import ast
from itertools import chain

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Bound,
    Class,
    External,
    Frame,
    Function,
    Instance,
    Method,
    Site,
    TaskCall,
    Thing,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import hand_out, in_line
from gradguard_lint.engine.turns import in_loop
from gradguard_lint.engine.waiting import ask_for_end, wait_for
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.starting import default_start, start_value, starts_of
from gradguard_lint.models.transfers.work import made_pool, task_given

_TARGET = "<target>"
"""The name under which an object of a subclass of ``Process`` has what it was given to run."""

_SEVERAL = "<several>"
"""The name under which it has whether the expression that made it makes several."""


def process(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Process(target=f, args=(...))``: it runs once it is started."""
    return _process(m, frame, node, name, args, row, start_value(m, row, args))


def _process(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row, start: Value
) -> Value:
    assert row.hands is not None
    task = task_given(m, frame, node, row.hands, args, name)
    parts = [("start", start), ("several", constant(in_loop(m, frame)))]
    if "daemon" in args.keywords:
        parts.append(("daemon", args.keywords["daemon"]))
    if task is not None:
        parts.append(("task", of(task)))
    return of(
        Thing(
            "process",
            name,
            m.ident_at(node),
            m.worker_ident,
            parts=tuple(parts),
            site=m.site(frame, node),
        )
    )


def process_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value:
    """``process.start()``."""
    task = thing.part("task")
    if name == "start" and task is not None:
        daemon = thing.part("daemon")
        tasks = list(task.of(TaskCall))
        run_processes(
            m,
            frame,
            node,
            tasks,
            thing.part("start"),
            thing.name.rpartition(".")[0],
            several=thing.part("several"),
            row=registry_of(m).row(thing.name),
            maker=thing.site,
            daemons=daemon is not None and daemon.constant is True,
            ident=thing.ident,
        )
    elif name == "join":
        joined(m, node, thing.ident, args)
    elif name == "is_alive":
        return is_alive(m, node, thing.ident)
    return UNKNOWN


def joined(m: Machine, node: ast.AST, ident: int, args: Args) -> None:
    """``process.join()``: with a limit of time, the process may run still."""
    if all(value.is_none for value in args.values()):
        wait_for(m, ident)
    else:
        ask_for_end(m, node, ident)


def is_alive(m: Machine, node: ast.AST, ident: int) -> Value:
    """``process.is_alive()``."""
    return unknown(("not", ask_for_end(m, node, ident)))


def run_processes(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    tasks: list[TaskCall],
    how: Value | None,
    library: str,
    *,
    several: Value | None,
    row: Row | None,
    maker: Site | None = None,
    daemons: bool,
    ident: int = 0,
) -> None:
    """Run `tasks` in processes of their own, which give nothing back.

    Args:
        several: whether there are several of them: as many as were made, as none starts twice.
        ident: the identity of what is joined.
    """
    starts = starts_of(m, how)
    if not starts:
        in_line(m, frame, tasks, apart=True)
    again = in_loop(m, frame)
    many = again if several is None else several.constant is not False
    others = _started_before(m, frame, node, tasks, ident) if again and not many else []
    for other in others:
        other.many = True
    many = many or bool(others)
    for start, when in starts:
        hand_out(
            m,
            frame,
            node,
            tasks,
            start,
            library,
            many=many,
            when=when,
            forking_pickler=row is not None and row.forking_pickler,
            ships=start.name not in INHERITING,
            answers=False,
            maker=maker,
            daemons=daemons,
            single=True,
            each=True,
            until=frozenset({ident} if ident else ()),
        )


def _started_before(
    m: Machine, frame: Frame, node: ast.AST, tasks: list[TaskCall], ident: int
) -> list[ParallelCall]:
    """The starts of other processes by `node`, in other turns of a loop, that run the same code."""
    function = node.func if isinstance(node, ast.Call) else None
    started = function.value if isinstance(function, ast.Attribute) else None
    found = m.lookup(frame, started.id) if isinstance(started, ast.Name) else None
    if found is None or found[0].only is None:
        return []  # it may be that one of them alone is ever made
    code = _code(tasks)
    return [
        call
        for call in m.program.calls
        if call.site.node is node
        and call.worker is m.place.worker
        and ident not in call.schedule.until
        and consistent(call.when, m.assumed.facts)
        and not code.isdisjoint(_code([task.task for task in call.tasks]))
    ]


def _code(tasks: list[TaskCall]) -> set[ast.AST]:
    """The functions that `tasks` may run."""
    found: set[ast.AST] = set()
    for atom in chain.from_iterable(task.function.atoms for task in tasks):
        function = atom.function if isinstance(atom, Bound) else atom
        if isinstance(function, Function):
            found.add(function.node)
    return found


def made_instance(m: Machine, frame: Frame, instance: Instance) -> None:
    """An object of a project's subclass of ``Process`` is made: alone, or several of them."""
    m.store[instance.ident, _SEVERAL] = constant(in_loop(m, frame))


def start_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance) -> Value:
    """``start()`` of an object of a project's subclass of ``Process``: it calls ``run``."""
    run = m.find_in_class(instance.cls, "run")
    tasks = list((m.read(instance.ident, _TARGET) or UNKNOWN).of(TaskCall))
    if run is not None:
        function = m.bind(frame, node, run, instance)
        own = frozenset({-1} if instance.cls.what == "thread" else ())
        tasks = [TaskCall(function, (), (), m.site(frame, node), own, library="multiprocessing")]
    if tasks:
        daemon = m.read(instance.ident, "daemon")
        row, start = _extended(m, instance.cls)
        run_processes(
            m,
            frame,
            node,
            tasks,
            start,
            "multiprocessing",
            several=m.read(instance.ident, _SEVERAL),
            row=row,
            daemons=daemon is not None and daemon.constant is True,
            ident=instance.ident,
        )
    return NOTHING


def _extended(m: Machine, cls: Class) -> tuple[Row | None, Value]:
    """What a project's subclass of ``Process`` or ``Thread`` extends, and how that starts."""
    registry = registry_of(m)
    for base in cls.outside():
        if isinstance(base, External):
            row = registry.row(registry.canonical(base.name))
            if row is not None and row.does == "process":
                return row, start_value(m, row, Args())
        elif isinstance(base, Method) and isinstance(base.receiver, Thing):
            name = name_in_context(base)
            if name:
                return registry.row(name), base.receiver.part("start") or UNKNOWN
    return None, constant("thread") if cls.what == "thread" else default_start(m, "multiprocessing")


def name_in_context(method: Method) -> str:
    """The full name of what a context gives, as ``get_context("spawn").Process``; "" for others."""
    context = method.receiver
    if isinstance(context, Thing) and context.kind == "context":
        return f"{context.name}.{method.name}"
    return ""


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``Process.__init__`` of an object of a project's subclass: what it is to run, and how."""
    daemon = args.keywords.get("daemon")
    if daemon is not None and not daemon.is_none:
        m.set_field(instance.ident, "daemon", daemon)
    hands = registry_of(m).exact["multiprocessing.Process"].hands
    assert hands is not None
    task = task_given(m, frame, node, hands, args, "multiprocessing")
    if task is not None:
        m.store[instance.ident, _TARGET] = of(task)
    return NOTHING


def spawn(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A function that runs another in processes."""
    assert row.hands is not None
    task = task_given(m, frame, node, row.hands, args, name)
    count = args.get(2, "nprocs")
    method = args.get(None, "start_method")
    daemon = args.get(4, "daemon")
    run_processes(
        m,
        frame,
        node,
        [task] if task is not None else [],
        method if method is not None else constant(row.start),
        name.rpartition(".")[0],
        several=constant(count is None or count.constant != 1),
        row=row,
        daemons=daemon is not None and daemon.constant is True,
    )
    return UNKNOWN


def context_method(
    m: Machine, frame: Frame, node: ast.AST, context: Thing, name: str, args: Args
) -> Value | None:
    """``get_context("spawn").Pool(...)``: the module's own names, with this start method."""
    full = f"{context.name}.{name}"
    row = registry_of(m).row(full)
    start = context.part("start") or UNKNOWN
    if row is None:
        return None
    if row.does in ("pool", "executor"):
        return made_pool(m, frame, node, full, args, row, start)
    if row.does == "process":
        return _process(m, frame, node, full, args, row, start)
    if row.does == "thing":
        made: Value = m.call(frame, node, of(External(full)), args)
        return made
    return None
