"""Pools and executors: dispatched work, and its results."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import (
    RANK,
    UNKNOWN,
    Atom,
    Class,
    Const,
    Frame,
    Instance,
    Items,
    Table,
    TaskCall,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.calls import call_back
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import dispatch_tasks, run_in_caller
from gradguard_lint.engine.truth import truthy
from gradguard_lint.engine.turns import in_loop
from gradguard_lint.engine.waiting import forget_start, moment_of, record_pool_start, wait_for
from gradguard_lint.models.known import Known
from gradguard_lint.models.transfers.processes import stated
from gradguard_lint.models.transfers.starting import default_start, start_of, starts_of


def begin_pool(m: Machine, pool: Instance) -> None:
    """Record that `pool` is created, with which some pools start their processes."""
    if stated(m, pool, "_forks") == "made":
        record_pool_start(m, pool.ident)
    elif moment_of(m, pool.ident) is not None:
        forget_start(m, pool.ident)


def give_work(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    pool: Instance,
    tasks: Value,
    gives: str,
    callback: Value | None,
) -> Value:
    """Dispatch `tasks`, one or a list, to the workers of `pool`; the result of the call.

    Args:
        gives: "" if it waits for the results; otherwise "future" or "futures".
        callback: the function that is called with the result.
    """
    many = not any(tasks.of(TaskCall))
    calls = list((element_of(m, tasks) if many else tasks).of(TaskCall))
    forks = stated(m, pool, "_forks")
    since = None
    if forks != "call" and not m.in_process_worker:
        since = moment_of(m, pool.ident)
        if since is None and forks == "work":
            record_pool_start(m, pool.ident)
    starts = starts_of(m, m.read(pool.ident, "_method"))
    if not starts:
        run_in_caller(m, frame, calls)
        return UNKNOWN
    single = stated(m, pool, "_single") is True
    initializer = next((m.read(pool.ident, "_initializer") or UNKNOWN).of(TaskCall), None)
    place = next((m.read(pool.ident, "_place") or UNKNOWN).things("place"), None)
    made = stated(m, pool, _MAKING) or 0
    results = [
        dispatch_tasks(
            *(m, frame, node, calls, start, str(stated(m, pool, "_library"))),
            many=(many or in_loop(m, frame)) and not single,
            initializer=initializer,
            when=when,
            since=since,
            forking_pickler=stated(m, pool, "_torch_pickles") is True,
            meant=stated(m, pool, "_meant") is True,
            maker=place.site if place is not None else None,
            # A project class is usually defined so that its processes aren't daemonic.
            daemons=pool.cls.module.is_stub and stated(m, pool, "_daemons") is True,
            each=not many,
            made=made if isinstance(made, int) else -1,
            until=frozenset({_future_ident(m, node), pool.ident} if gives else ()),
            queue=pool.ident if single else 0,
        )
        for start, when in starts
    ]
    result = join(results)
    if callback is not None and not callback.is_unknown and not callback.is_none:
        call_back(m, frame, node, callback, Args([sequence(result) if many else result]))
    if gives == "futures":
        return sequence(future(result, _future_ident(m, node)))
    result = sequence(result) if many else result
    return future(result, _future_ident(m, node)) if gives else result


def make_there(m: Machine, frame: Frame, node: ast.AST, actor: Instance, making: Value) -> None:
    """Create an object in a worker of `actor`, where it stays; the caller gets a handle."""
    calls, returned = len(m.program.calls), set(m.program.returned)
    made = give_work(m, frame, node, actor, making, "", None)
    for ident in set(m.program.returned) - returned:
        _, m.program.sent_back[ident] = m.program.returned.pop(ident)
    after = m.place.ended.task_state
    for instance in made.of(Instance) if after is not None else ():
        for field in list(m.facts.attribute_names.get(instance.ident, ())):
            value = after.store.get((instance.ident, field)) if after is not None else None
            if value is not None:
                m.set_field(instance.ident, field, value)
    m.set_field(actor.ident, "_made", made)
    run = m.program.calls[calls:]
    m.set_field(actor.ident, _MAKING, constant(run[0].ident if run else -1))
    if any(it.gpu_use == "context" for call in run for task in call.tasks for it in task.effects):
        m.set_field(actor.ident, "_meant", constant(True))  # its methods use that object


_MAKING = "_making"
"""The attribute of an actor with the identity of the call that created its object."""


def _future_ident(m: Machine, node: ast.AST) -> int:
    """The identity of the result of a dispatching call at `node`."""
    return m.ident_at(node, "future")


def future(result: Value, ident: int = 0) -> Value:
    """A future of `result`."""
    return of(Thing("future", "future", ident, parts=(("result", result),)))


def result_of(m: Machine, value: Value) -> Value:
    """The results of futures in `value`, for which this waits."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Thing) and atom.kind == "future":
            wait_for(m, atom.ident)
            return atom.part("result") or UNKNOWN
        if isinstance(atom, Items):
            return sequence(result_of(m, atom.element), atom.kind)
        return UNKNOWN if isinstance(atom, (Thing, Unknown)) else of(atom)

    return value.map(change)


def by_method(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> Value | None:
    """A method of an unknown object that, by its name and arguments, dispatches work."""
    if name == "run_in_executor" and args.positional:
        executor = args.positional[0]
        if executor.is_none or any(executor.of(Instance)):
            return stub_method(m, frame, node, "asyncio.AbstractEventLoop", name, args)
    if name in ("map", "filter") and "num_proc" in args.keywords:
        count = args.keywords["num_proc"]
        function = args.get(0, "function")
        if function is None or all(
            isinstance(atom, Const) and atom.value in (None, 0, 1) for atom in count.atoms
        ):
            return None
        items_given = [UNKNOWN]
        if truthy(args.get(None, "with_indices")):
            items_given.append(UNKNOWN)
        ranked = truthy(args.get(None, "with_rank"))  # as many as there are processes
        if ranked:
            items_given.append(unknown(RANK))
        extra = args.keywords.get("fn_kwargs")
        more = extra.only if extra is not None else None
        named = more.entries if isinstance(more, Table) else ()
        task = TaskCall(
            *(function, tuple(items_given), tuple((str(key), it) for key, it in named)),
            m.site(frame, node),
            frozenset(range(len(items_given))),
            library="datasets",
        )
        start = start_of(m, default_start(m, "datasets"))
        if start is not None:
            dispatch_tasks(m, frame, node, [task], start, "datasets", answers=False, single=ranked)
    return None


def stub_method(
    m: Machine, frame: Frame, node: ast.AST, cls: str, name: str, args: Args
) -> Value | None:
    """A method of an external object, represented by the stub class `cls`."""
    assert isinstance(m.models, Known)
    for atom in (m.models.stub(m, cls) or UNKNOWN).of(Class):
        instance = Instance(atom, m.ident_of(("given", cls)), m.worker_ident)
        method = m.attribute(frame, node, of(instance), name)
        result: Value = m.call(frame, node, method, args)
        return result
    return None
