"""Processes and threads started individually, or several for one function."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from itertools import chain

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    UNKNOWN,
    Bound,
    Frame,
    Function,
    Instance,
    Site,
    TaskCall,
    Value,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tasks import dispatch_tasks, run_in_caller
from gradguard_lint.engine.turns import in_loop
from gradguard_lint.models.transfers.starting import start_in, starts_of


def start_instance(m: Machine, frame: Frame, node: ast.AST, worker: Instance) -> None:
    """Start an object of a process or thread class, with its own ``run`` or its target."""
    run = m.find_in_class(worker.cls, "run")
    library = str(stated(m, worker, "_library"))
    start = start_in(m, m.find_in_class(worker.cls, "_start") or UNKNOWN, library)
    maker = None
    if any(not function.module.is_stub for function in (run or UNKNOWN).of(Function)):
        function = m.bind(frame, node, run or UNKNOWN, worker)
        own = frozenset({-1} if start.constant == "thread" else ())
        tasks = [TaskCall(function, (), (), m.site(frame, node), own, library=library)]
    else:
        tasks = list((m.read(worker.ident, "_task") or UNKNOWN).of(TaskCall))
        maker = next((task.site for task in tasks), None)
    run_processes(
        *(m, frame, node, tasks, start, library),
        several=m.read(worker.ident, "_several"),
        torch_pickles=stated(m, worker, "_torch_pickles") is True,
        maker=maker,
        daemons=stated(m, worker, "daemon") is True,
        ident=worker.ident,
    )


def stated(m: Machine, instance: Instance, name: str) -> Hashable:
    """The constant attribute of a stub object, or of its class."""
    value = m.read(instance.ident, name) or m.find_in_class(instance.cls, name)
    return None if value is None else value.constant


def run_processes(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    tasks: list[TaskCall],
    how: Value,
    library: str,
    *,
    several: Value | None,
    torch_pickles: bool,
    maker: Site | None = None,
    daemons: bool,
    ident: int = 0,
) -> None:
    """Run `tasks` in separate processes, without results.

    Args:
        several: whether there are several processes.
        torch_pickles: whether torch's ForkingPickler is used.
        ident: the identity of the process or thread object.
    """
    starts = starts_of(m, how)
    if not starts:
        run_in_caller(m, frame, tasks, apart=True)
    again = in_loop(m, frame)
    many = again if several is None else several.constant is not False
    others = _started_before(m, frame, node, tasks, ident) if again and not many else []
    for other in others:
        other.many = True
    many = many or bool(others)
    for start, when in starts:
        dispatch_tasks(
            *(m, frame, node, tasks, start, library),
            many=many,
            when=when,
            forking_pickler=torch_pickles,
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
    """Starts of other processes by `node`, in other loop iterations, that run the same code."""
    function = node.func if isinstance(node, ast.Call) else None
    started = function.value if isinstance(function, ast.Attribute) else None
    found = m.lookup(frame, started.id) if isinstance(started, ast.Name) else None
    if found is None or found[0].only is None:
        return []  # possibly only one of them is ever created
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
    found: set[ast.AST] = set()
    for atom in chain.from_iterable(task.function.atoms for task in tasks):
        function = atom.function if isinstance(atom, Bound) else atom
        if isinstance(function, Function):
            found.add(function.node)
    return found
