"""Running tasks: arguments, modes and results across the worker boundary."""

from __future__ import annotations

import ast
from functools import partial

from gradguard_lint.domain.conditions import NONE, Conditions, assume
from gradguard_lint.domain.effects import Modes, ParallelCall, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Backward, Capture, Escape
from gradguard_lint.domain.shapes import (
    as_owned,
    as_received,
    inner,
    item_at_unknown_position,
    known_items,
    of_a_library,
)
from gradguard_lint.domain.starts import IMPORTING, INHERITING, PROCESS, THREAD, Start
from gradguard_lint.domain.state import Moment
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Const,
    Frame,
    Function,
    Instance,
    Items,
    Partial,
    Site,
    TaskCall,
    Thing,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.domain.workers import Channel, Schedule, WorkerTraits
from gradguard_lint.engine.containers import whole
from gradguard_lint.engine.crossing import functions_in, is_refused, shipped
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.pickling import arrive, pickling_themselves, sent_as
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.reach import reached
from gradguard_lint.engine.results import as_data, ends_of, sent_back
from gradguard_lint.engine.run_parts import Position
from gradguard_lint.engine.waiting import record_overlaps, turn_of
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.questions import Key
    from gradguard_lint.reading.source import Module

AT_FORK = "<at fork>"


TASKS = 8
"""The most distinct tasks of a call that run."""


def tasks_in(m: Machine, value: Value, depth: int = 6) -> list[TaskCall]:
    """The task calls in a value, also in nested lists and generators."""
    found: dict[TaskCall, None] = {}
    for atom in m.filtered(value).atoms:
        if isinstance(atom, TaskCall):
            found[atom] = None
        elif isinstance(atom, Items) and depth:
            for item in atom.items if atom.items is not None else (atom.element,):
                for task in tasks_in(m, item, depth - 1):
                    found[task] = None
    return list(found)


def run_in_caller(m: Machine, frame: Frame, tasks: list[TaskCall], *, apart: bool = False) -> Value:
    """Run `tasks` sequentially in the caller; their joined results.

    Args:
        apart: whether the caller continues if a task raises or never ends.
    """
    results = []
    m.program.in_line += tasks
    for task in tasks[:TASKS]:
        before, raised = (m.state.copy() if apart else m.state), m.place.raised
        m.place.raised = [] if apart else raised
        args = Args.given(list(task.args), task.keywords, exact=task.exact)
        results.append(m.call(frame, task.site.node, task.function, args))
        m.place.raised = raised
        if apart and m.dead:
            m.state = before
    if len(tasks) > TASKS:
        results.append(UNKNOWN)
    return join(results) if results else UNKNOWN


def dispatch_tasks(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    tasks: list[TaskCall],
    start: Start,
    library: str,
    *,
    many: bool = True,
    when: Conditions = NONE,
    initializer: TaskCall | None = None,
    since: Moment | None = None,
    ships: bool = True,
    answers: bool = True,
    forking_pickler: bool = False,
    meant: bool = False,
    prepared: bool = False,
    maker: Site | None = None,
    maps: tuple[int, str] | None = None,
    daemons: bool = False,
    made: int = 0,
    single: bool = False,
    each: bool = False,
    until: frozenset[int] = frozenset(),
    queue: int = 0,
) -> Value:
    """Dispatch `tasks` to workers; their joined results.

    Args:
        since: the moment at which existing workers started.
        made: the identity of the call that created the actor.

    Other arguments are fields of the call's `Channel`, `WorkerTraits` and `Schedule`.
    """
    if forking_pickler and start.kind == PROCESS and start.name not in INHERITING:
        tasks = [task for task in tasks if not _is_of_a_notebook(task.function)]
    if m.dead or not tasks:
        return UNKNOWN
    nested = m.place.worker is not None and (
        start.kind == THREAD
        or m.in_process_worker
        or m.models.runs_nested(m.place.worker.call, library)
    )
    if nested and not (start.kind == PROCESS and ships and m.models.sends_on(m, library)):
        # In a worker, nested calls run in its threads or sequentially; but a thread starts
        # processes as the program does.
        return run_in_caller(m, frame, tasks, apart=single and not answers)
    assumed = m.assumed.copy()
    assume(m.assumed, when)
    call = ParallelCall(
        m.ident_at(node, "call"),
        m.site(frame, node),
        start.kind,
        start.name,
        start.workers,
        library,
        m.modes,
        m.place.root,
        many,
        before=dict(m.state.past) if since is None else since.past,
        past=None if since is None else dict(m.state.past),
        inherited=m.modes if since is None else since.modes,
        when=m.assumed.facts,
        chosen=when,
        channel=Channel(ships, answers, forking_pickler, maps),
        traits=WorkerTraits(maker, meant, prepared, daemons, single, made),
        schedule=Schedule(each, turn_of(m), m.place.turns.sites(), until=until, queue=queue),
        worker=m.place.worker,
        chain=m.place.chain,
        frame=frame,
    )
    if call.kind == PROCESS and ships:
        tasks = [task for task in tasks if not is_refused(m, task, call)]
        if not tasks:
            m.state.assumed = assumed
            return UNKNOWN
    if nested:  # it counts as run in this worker; only what it is sent is checked
        call.tasks += [_sent_on(m, call, task) for task in tasks[:TASKS]]
        m.program.nested.append(call)
        m.state.assumed = assumed
        return run_in_caller(m, frame, tasks, apart=single and not answers)
    record_overlaps(m, call)
    m.program.calls.append(call)
    with m.budget.reserve(node):
        results = [run_task(m, frame, call, start, task, initializer) for task in tasks[:TASKS]]
    if len(tasks) > TASKS:
        results.append(UNKNOWN)
    m.state.assumed = assumed
    m.state.past[call] = call.when
    m.facts.handed_out.append(call)
    return join(results)


def _sent_on(m: Machine, call: ParallelCall, task: TaskCall) -> TaskRun:
    """A task that a worker dispatches itself, with objects that it didn't receive."""
    run = m.place.worker
    had = [atom for _, atom, _ in run.given] if run is not None else []
    for effect in of_kinds(run.effects, Capture) if run is not None else ():
        had += inner(effect.payload.value, 2)
    came = {as_received(of(atom), m.worker_ident).only for atom in had}
    sent = [it for it in shipped(m, call, task) if it[1] not in came]
    return TaskRun(m.new_ident(), call, task, sent, sent, first_at_start=len(sent))


def _is_of_a_notebook(function: Value) -> bool:
    """Whether a task's function is pickled by its name in a notebook cell: a spawned process can't
    find it, so the task never runs."""
    modules = [_home(atom) for atom in functions_in(function)]
    return bool(modules) and all(it is not None and it.is_notebook for it in modules)


def _home(atom: Atom) -> Module | None:
    """The module of the function or callable `atom`."""
    if isinstance(atom, Bound):
        return _home(atom.receiver)
    if isinstance(atom, Instance):
        return atom.cls.module
    return atom.module if isinstance(atom, (Function, Class)) else None


def forked(m: Machine) -> Value:
    """The functions that forked processes run first, in order."""
    return m.read(0, AT_FORK) or NOTHING


def _fresh_worker_modes(m: Machine, call: ParallelCall) -> Modes:
    """The modes of a fresh worker: those set by imported modules, which it imports as well."""
    site = call.inherited.grad_site
    if call.kind != PROCESS or site is None or site.function is not None:
        return Modes()
    return Modes() if site.module.name == m.program.entry else Modes(False, site)


def _reset_rebound_globals(m: Machine, call: ParallelCall) -> None:
    """Reset rebound globals of imported modules to their values after import, as workers that
    import these modules see them; except models and tensors."""
    importing = m.program.entry if call.start in IMPORTING else None
    for place, by in m.facts.rebound_globals.items():
        first, now = m.facts.loaded.get(place), m.store.get(place)
        if first is None or now is None or importing in by:
            continue
        if not any(map(of_a_library, (*inner(first, 2), *inner(now, 2)))):
            m.store[place] = first


def run_task(
    m: Machine,
    frame: Frame,
    call: ParallelCall,
    start: Start,
    task: TaskCall,
    initializer: TaskCall | None,
) -> Value:
    """Run one task as its worker does."""
    run = TaskRun(m.new_ident(), call, task, initializer=initializer)
    call.tasks.append(run)
    run.given = shipped(m, call, task)
    run.first_at_start = len(run.given)
    places = ((ident, m.place_of(ident)) for ident in m.program.moved)
    run.places = {ident: place for ident, place in places if place is not None}
    themselves = (
        pickling_themselves(m, (it for _, it, _ in run.given)) if call.channel.ships else []
    )
    pickled = sent_as(m, themselves)
    pickled_at_start: list[tuple[Instance, Value]] = []
    if call.channel.ships:
        run.contents = run.given
    if initializer is not None and call.kind == PROCESS:
        at_start = shipped(m, call, initializer)
        run.given = run.given + at_start
        if call.channel.ships and call.start not in INHERITING:  # a fork inherits initargs
            run.contents = run.given
            with_start = pickling_themselves(m, (atom for _, atom, _ in at_start))
            pickled_at_start = sent_as(m, with_start)
            themselves += with_start
    run.own_pickling = bool(themselves)
    parent = m.state
    position, outer_returned = Position(m.place), m.place.ended.decorated_returns
    m.state = parent.copy()
    if call.kind == PROCESS and call.start not in INHERITING:
        _reset_rebound_globals(m, call)
    m.modes = (
        replace(call.inherited, tape=None)
        if call.start in INHERITING
        else _fresh_worker_modes(m, call)
    )
    m.place.worker, m.place.raised, m.place.making = run, [], ()
    m.place.ended.returns = None
    wrapped = next(filter(None, map(_wrapped, functions_in(task.function))), None)
    m.place.ended.decorated_returns = {} if wrapped is None else {wrapped.node: []}
    process = call.kind == PROCESS
    try:
        run.starting = True
        for function in known_items(forked(m)) or () if call.start == "fork" else ():
            m.place.chain = (Step(call.site, f"{call.workers} are forked"),)
            m.call(frame, task.site.node, function, Args())
            run.initialised = len(run.effects)
        if initializer is not None:
            m.place.chain = (Step(call.site, f"the initializer runs in {call.workers}"),)
            arrive(m, frame, initializer.site.node, pickled_at_start)
            m.call(
                frame,
                initializer.site.node,
                initializer.function,
                _arguments(m, initializer, process, run),
            )
            m.place.ended.returns = None
            run.initialised = len(run.effects)
        run.starting = False
        m.place.chain = (Step(task.site, f"what is sent is unpickled in {call.workers}"),)
        arrive(m, frame, task.site.node, pickled)
        m.place.ended.returns = None
        m.place.chain = (Step(task.site, run.runs),)
        function = task.function
        if not process and -1 in task.private:
            function = as_owned(function, run.ident)
            run.own |= _bound_selectors(m, function)
        result = m.call(frame, task.site.node, function, _arguments(m, task, process, run))
        result = whole(m, m.iterated(frame, task.site.node, result))
        if m.place.ended.returns is not None:
            module, name, ends = m.place.ended.returns
            m.place.ended.returns = (
                module,
                name,
                [(whole(m, value), node) for value, node in ends],
            )
        handed_back = [
            (whole(m, value), node)
            for ends in m.place.ended.decorated_returns.values()
            for value, node in ends
        ]
        held = as_data(m, result)
        ends = [m.place.ended.returns[2] if m.place.ended.returns is not None else [], handed_back]
        records, objects = (
            [[(as_data(m, value, plain=plain), node) for value, node in end] for end in ends]
            for plain in (False, True)
        )
        # Only a process that trains loses gradients, and the search is slow.
        trains = process and any(of_kinds(run.effects, Backward))
        for effect in of_kinds(run.effects, Escape) if trains else ():
            effect.payload.reachable = reached(m, effect.target)
    finally:
        position.restore(m.place)
        m.place.ended.decorated_returns = outer_returned
        after, m.state = m.state, parent
    run.known = any(
        isinstance(atom, (Function, Bound))
        or (isinstance(atom, (Instance, Thing)) and m.place.ended.returns is not None)
        for atom in functions_in(task.function)
    )
    m.place.ended.task_state = after
    if not call.channel.answers:
        result = UNKNOWN
    elif m.place.ended.returns is not None and run.known:
        module, name, _ = m.place.ended.returns
        run.returns = ends_of(module, name, records[0], wrapped, records[1])
        run.held = ends_of(module, name, objects[0], wrapped, objects[1])
    run.result = held if call.channel.answers else None
    if not process and not after.dead:
        after.assumed, after.modes = parent.assumed, parent.modes
        m.state = after
    elif not process and call.schedule.until:
        # It never ends, or fails: its effects happen anyway.
        m.state.past.update((effect, effect.when) for effect in run.effects)
    if start.copies:
        result = sent_back(m, result, call)
    return result


def _wrapped(atom: Atom) -> Function | None:
    """The function of the program under a decorator of its own."""
    function = atom.function if isinstance(atom, Bound) else atom
    return function.wraps if isinstance(function, Function) else None


def _arguments(m: Machine, task: TaskCall, process: bool, run: TaskRun) -> Args:
    def place(value: Value, name: int | str, private: bool) -> Value:
        if task.unplaced is not None and isinstance(name, int) and name >= task.unplaced:
            value = item_at_unknown_position(value)
        if process:
            value = as_received(value, m.worker_ident)
        if value.is_nameless and (process or private):
            value = value.map(partial(_as_sent, ("sent", run.ident, name, private)))
        if process or not private:
            return value
        run.own.update(atom for atom in inner(value) if isinstance(atom, (Const, Unknown)))
        return as_owned(value, run.ident)

    return Args.given(
        [place(value, index, index in task.private) for index, value in enumerate(task.args)],
        [(name, place(value, name, name in task.private_names)) for name, value in task.keywords],
        exact=task.exact,
    )


def _as_sent(place: Key, atom: Atom) -> Value:
    """An unknown argument that a worker received at `place`."""
    return of(replace(atom, sent=place)) if isinstance(atom, Unknown) else of(atom)


def _bound_selectors(m: Machine, function: Value) -> set[Atom]:
    """Selector values among the function's bound arguments, or among the arguments with which the
    method's object was created."""
    found: set[Atom] = set()
    for atom in function.atoms:
        given = atom.defaults if isinstance(atom, Function) else ()
        if isinstance(atom, Partial):
            given = (*atom.args, *(value for _, value in atom.keywords))
        elif isinstance(atom, Bound) and isinstance(atom.receiver, Instance):
            found |= m.place.turns.per_turn_args.get(atom.receiver.ident, set())
        found.update(
            item for value in given for item in value.atoms if isinstance(item, (Const, Unknown))
        )
    return {it for it in found if not (isinstance(it, Unknown) and it.is_nameless)}
