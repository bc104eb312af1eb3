"""Running tasks: what becomes of arguments, modes and results at the boundary."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gradguard_lint.semantics.core import Args
from gradguard_lint.semantics.events import (
    PROCESS,
    THREAD,
    Modes,
    ParallelCall,
    Step,
    TaskRun,
)
from gradguard_lint.semantics.values import (
    NONE,
    UNKNOWN,
    Atom,
    Bound,
    Choice,
    Conditions,
    Const,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Site,
    Table,
    TaskCall,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    of,
    owned,
)

if TYPE_CHECKING:
    from gradguard_lint.semantics.frames import Frame
    from gradguard_lint.semantics.interpreter import Interpreter

STARTS = {
    "loky": "loky",
    "processes": "loky",
    "multiprocessing": "fork",
    "threading": "thread",
    "threads": "thread",
    "sequential": "",
    "dask": "dask",
    "ray": "spawn",
    "sharedmem": "thread",
}


def contents(
    core: Interpreter, value: Value, path: str, depth: int = 3
) -> Iterator[tuple[str, Atom, Conditions]]:
    """What pickling `value` meets: the atoms inside containers, partials and objects."""
    for choice in value.choices:
        atom = choice.atom
        yield path, atom, choice.when
        if depth <= 0:
            continue
        parts: list[tuple[str, Value]] = []
        if isinstance(atom, Items):
            if atom.items is not None:
                parts = [(f"{path}[{index}]", item) for index, item in enumerate(atom.items)]
            else:
                parts = [(f"{path}[...]", atom.element)]
        elif isinstance(atom, Table):
            parts = [(f"{path}[{key!r}]", item) for key, item in atom.entries]
            parts.append((f"{path}[...]", atom.rest))
        elif isinstance(atom, Partial):
            parts = [(f"{path}.args[{index}]", item) for index, item in enumerate(atom.args)]
            parts += [(f"{path}.{name}", item) for name, item in atom.keywords]
            parts.append((path, atom.function))
        elif isinstance(atom, Bound):
            parts = [("self", of(atom.receiver))]
        elif isinstance(atom, Method):
            parts = [(path, of(atom.receiver))]
        elif isinstance(atom, Instance):
            moved = core.read(atom.ident, "<gpu>")
            if moved is not None and True in moved.constants():
                yield path, Thing("model", atom.cls.name, atom.ident, gpu=True), choice.when
            parts = [
                (f"{path}.{name}", core.filtered(item))
                for (ident, name), item in list(core.store.items())
                if ident == atom.ident and name != "<gpu>"
            ]
        for name, item in parts:
            for inner_path, inner_atom, when in contents(core, item, name, depth - 1):
                yield inner_path, inner_atom, when | choice.when


def tasks_in(value: Value) -> list[TaskCall]:
    """The task calls in a list, a generator, or by themselves."""
    found: dict[TaskCall, None] = {}
    for atom in value.atoms:
        if isinstance(atom, TaskCall):
            found[atom] = None
        elif isinstance(atom, Items):
            for item in atom.items if atom.items is not None else (atom.element,):
                for task in tasks_in(item):
                    found[task] = None
    return list(found)


def call_with(
    core: Interpreter,
    frame: Frame,
    node: ast.AST,
    tasks: list[TaskCall],
    start: str,
    library: str,
    *,
    many: bool = True,
    when: Conditions = NONE,
    initializer: TaskCall | None = None,
) -> Value:
    """Hand `tasks` to workers that come into being by `start`; what they return."""
    if core.worker is not None or core.dead:
        # Within a worker, nested calls run in its threads or one after the other.
        return (
            join(
                core.call(
                    frame, task.site.node, task.function, Args(list(task.args), dict(task.keywords))
                )
                for task in tasks[:4]
            )
            if tasks
            else UNKNOWN
        )
    assumed = dict(core.assumed)
    for key, truth in when:
        core.assume(key, truth)
    core.order += 1
    call = ParallelCall(
        core.new_ident(),
        core.site(frame, node),
        THREAD if start in ("thread", "dask-threads") else PROCESS,
        start,
        library,
        core.modes,
        core.root,
        core.order,
        many,
    )
    core.program.calls.append(call)
    results = [run_task(core, frame, call, task, initializer) for task in tasks[:8]]
    core.assumed = assumed
    return join(results) if results else UNKNOWN


def run_task(
    core: Interpreter,
    frame: Frame,
    call: ParallelCall,
    task: TaskCall,
    initializer: TaskCall | None,
) -> Value:
    """Run one task as its worker does."""
    run = TaskRun(core.new_ident(), call, task)
    call.tasks.append(run)
    _note_shipped(core, run, task)
    store, modes, chain = dict(core.store), core.modes, core.chain
    assumed, loop_depth, statement = dict(core.assumed), core.loop_depth, core.statement
    core.worker = run
    core.chain = (Step(task.site, f"`{run.name}` runs in {call.workers}"),)
    core.modes = replace(modes, tape=None) if call.start == "fork" else Modes()
    core.last_returns = None
    process = call.kind == PROCESS
    try:
        if initializer is not None:
            core.chain = (Step(call.site, f"the initializer runs in {call.workers}"),)
            core.call(
                frame,
                initializer.site.node,
                initializer.function,
                _arguments(core, initializer, process, run),
            )
            core.chain = (Step(task.site, f"`{run.name}` runs in {call.workers}"),)
            core.last_returns = None
            run.initialised = len(run.effects)
        function = task.function
        if not process and -1 in task.private:
            function = owned(function, run.ident)
        result = core.call(frame, task.site.node, function, _arguments(core, task, process, run))
    finally:
        core.worker, core.modes, core.chain = None, modes, chain
        core.assumed, core.loop_depth, core.statement = assumed, loop_depth, statement
    run.known = any(isinstance(atom, (Function, Bound)) for atom in _functions(task.function))
    if core.last_returns is not None and run.known:
        module, name, returns = core.last_returns
        run.returns = [(value, Site(module, node, name, node)) for value, node in returns]
    run.result = result
    if process:
        core.store = store
    if process or call.start == "dask-threads":  # these threads work on copies too
        result = sent_back(core, result, call)
    return result


def _functions(value: Value) -> Iterator[Atom]:
    for atom in value.atoms:
        if isinstance(atom, Partial):
            yield from _functions(atom.function)
        else:
            yield atom


def _arguments(core: Interpreter, task: TaskCall, process: bool, run: TaskRun) -> Args:
    def place(value: Value, private: bool) -> Value:
        if process:
            return core.arrived(value)
        return owned(value, run.ident) if private else value

    return Args(
        [place(value, index in task.private) for index, value in enumerate(task.args)],
        {name: place(value, name in task.private_names) for name, value in task.keywords},
    )


def _note_shipped(core: Interpreter, run: TaskRun, task: TaskCall) -> None:
    """Keep what crosses with the task, for the rules that ask."""
    shipped: list[tuple[str, Value, bool]] = [
        (f"args[{index}]", value, index in task.private) for index, value in enumerate(task.args)
    ]
    shipped += [(name, value, name in task.private_names) for name, value in task.keywords]
    shipped.append(("the function", task.function, -1 in task.private))
    run.shipped = {path: value for path, value, _ in shipped}
    run.contents = [
        (path, atom, private)
        for name, value, private in shipped
        for path, atom, when in contents(core, value, name)
        if not core.conflicts(when)
    ]


def sent_back(core: Interpreter, value: Value, call: ParallelCall) -> Value:
    """A process worker's result as the parent receives it: graphs are gone."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, Tensor):
            severed = atom.severed
            grad = atom.grad
            if atom.framework == "torch" and grad == "history":
                severed, grad = severed | {call.ident}, "leaf"
            return replace(atom, grad=grad, severed=severed, born=0, ident=core.new_ident())
        if isinstance(atom, Items):
            return Items(
                atom.kind,
                tuple(sent_back(core, item, call) for item in atom.items)
                if atom.items is not None
                else None,
                sent_back(core, atom.element, call),
            )
        if isinstance(atom, Table):
            return Table(
                tuple((key, sent_back(core, item, call)) for key, item in atom.entries),
                sent_back(core, atom.rest, call),
            )
        if isinstance(atom, Thing):
            return replace(atom, born=0)
        if isinstance(atom, Unknown):
            return Unknown(("result", call.ident))
        return atom

    return Value(tuple(Choice(change(choice.atom), choice.when) for choice in value.choices))


# -- joblib's choice of a backend ------------------------------------------------------------------


def start_of(core: Interpreter, parallel: Thing) -> tuple[str, Conditions] | None:
    """How `parallel` starts its workers, and when; None where it runs nothing in parallel."""
    backend = parallel.part("backend")
    if backend is None or core.is_none(backend):
        backend = core.modes.backend
    n_jobs = parallel.part("n_jobs")
    if n_jobs is None or core.is_none(n_jobs):
        n_jobs = core.modes.n_jobs
    if n_jobs is None:
        return None
    worlds = [
        choice.when
        for choice in n_jobs.choices
        if not (isinstance(choice.atom, Const) and choice.atom.value in (1, None))
    ]
    if not worlds:
        return None
    when = frozenset.intersection(*worlds)
    require = parallel.part("require")
    if require is not None and "sharedmem" in require.constants():
        return "thread", when
    if backend is None:
        prefer = parallel.part("prefer")
        if prefer is None or core.is_none(prefer):
            return "loky", when
        backend = prefer
    return _named_start(backend, when)


def _named_start(backend: Value, when: Conditions) -> tuple[str, Conditions] | None:
    best: tuple[str, Conditions] | None = None
    for choice in backend.choices:
        name: Hashable = None
        if isinstance(choice.atom, Const):
            name = choice.atom.value
        if name is None and isinstance(choice.atom, Const):
            start: str | None = "loky"
        else:
            start = STARTS.get(name) if isinstance(name, str) else None
        if start and (best is None or (best[0] == "thread" and start != "thread")):
            best = (start, when | choice.when)
    return best


def backend_unknown(parallel: Thing, modes: Modes) -> bool:
    """Whether the backend is something that cannot be told."""
    backend = parallel.part("backend") or modes.backend
    return backend is not None and any(backend.of(Unknown))
