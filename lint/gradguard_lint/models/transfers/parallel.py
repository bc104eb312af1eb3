"""joblib, and scikit-learn's copies of its names: `Parallel`, `delayed`, contexts, `Memory`."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import inner, sequence
from gradguard_lint.domain.starts import Start
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Bound,
    Const,
    Delayed,
    Frame,
    Function,
    Instance,
    Items,
    Site,
    TaskCall,
    Tensor,
    Thing,
    Value,
    guarded,
    of,
)
from gradguard_lint.engine.arguments import SOME
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.quoting import items_text, unpacked_text, written
from gradguard_lint.engine.tasks import dispatch_tasks, run_in_caller, tasks_in
from gradguard_lint.engine.tree import last_name
from gradguard_lint.engine.turns import in_loop, private_parts
from gradguard_lint.engine.waiting import moment_of
from gradguard_lint.models.known import start_called
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import starting
from pytest_gradguard.records import replace

MAPPING = ("max_nbytes", "mmap_mode")
"""Arguments for the transfer of arrays."""

OUTSIDE = "outside-"
"""Prefix of a context's parts for settings from before it."""

POOL = "multiprocessing"
"""The backend with a pool, whose workers use the program's start method."""

MAPPING_BACKENDS = ("loky", POOL)
"""Backends whose workers get large arrays as memory maps."""

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

MAPPED_FROM = UNITS["M"]
"""The default size up to which arrays are sent as copies."""


def parallel_parts(args: Args) -> tuple[tuple[str, Value], ...]:
    """The arguments of ``Parallel(...)`` that determine where its tasks run."""
    return _given(args, "n_jobs", "backend")


def parallel(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Parallel(...)``."""
    parts = parallel_parts(args)
    thing = Thing(
        "parallel", name, m.ident_at(node), m.worker_ident, parts=parts, site=m.site(frame, node)
    )
    backend = thing.part("backend")
    if backend is not None and "dask" in backend.constants():
        m.effect(frame, node, 'backend="dask"', LibraryUse("dask backend"))
    return of(thing)


def task(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``delayed(f)``."""
    function = args.get(*row.argument)
    return of(Delayed(function if function is not None else UNKNOWN, row.flag or "joblib"))


def parallel_config(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``parallel_config(...)``."""
    before = m.modes
    settings = (("backend", before.backend), ("n_jobs", before.n_jobs), *before.maps)
    outside = ((OUTSIDE + it, value) for it, value in settings if value is not None)
    parts = (*_given(args, "backend", "n_jobs"), *outside)
    made = Thing("parallel-config", name, parts=parts)
    configured(m, made)  # from here on, or until its block ends
    return of(made)


def put_back(m: Machine, value: Value) -> None:
    """Restore the settings from before a context `value` was created."""
    made = value.only
    if not isinstance(made, Thing) or made.kind != "parallel-config":
        return
    settings = {name[len(OUTSIDE) :]: it for name, it in made.parts if name.startswith(OUTSIDE)}
    maps = tuple((name, settings[name]) for name in MAPPING if name in settings)
    m.modes = replace(
        m.modes, backend=settings.get("backend"), n_jobs=settings.get("n_jobs"), maps=maps
    )


def configured(m: Machine, made: Thing) -> None:
    """Apply the settings of a context."""
    modes = m.modes
    backend = made.part("backend")
    n_jobs = made.part("n_jobs")
    if n_jobs is None and backend is not None and made.name.endswith("parallel_backend"):
        n_jobs = UNKNOWN
    m.modes = replace(
        modes,
        backend=backend if backend is not None else modes.backend,
        n_jobs=n_jobs if n_jobs is not None else modes.n_jobs,
        maps=(*modes.maps, *((name, part) for name, part in made.parts if name in MAPPING)),
    )
    if backend is None and made.part("prefer") is not None:
        m.modes = replace(m.modes, backend=made.part("prefer"))


def memory(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Memory(...)``; without a location it caches nothing."""
    location = args.get(0, "location")
    nowhere = location is not None and location.is_none
    return of(Thing("no-memory" if nowhere else "memory", name))


def _given(args: Args, *placed: str) -> tuple[tuple[str, Value], ...]:
    """The relevant arguments; those in `placed` are positional."""
    places = (*enumerate(placed), *((None, name) for name in ("prefer", "require", *MAPPING)))
    found = ((name, args.get(position, name)) for position, name in places)
    return tuple((name, value) for name, value in found if value is not None)


def _maps(m: Machine, parallel: Thing) -> tuple[int, str] | None:
    """The size from which arrays arrive as memory maps, and the mode; None: never, or unknown."""
    given = {**dict(m.modes.maps), **dict(parallel.parts)}
    limit, mode = (given[name].only if name in given else None for name in MAPPING)
    size = MAPPED_FROM if limit is None else limit.value if isinstance(limit, Const) else None
    if isinstance(size, str) and size[:-1].isdigit() and size[-1] in UNITS:
        size = int(size[:-1]) * UNITS[size[-1]]
    how = "r" if mode is None else mode.value if isinstance(mode, Const) else None
    if isinstance(size, int) and how in ("r", "r+", "w+"):
        return size, str(how)
    return None


def run(m: Machine, frame: Frame, node: ast.AST, parallel: Thing, args: Args) -> Value:
    """``Parallel(...)(tasks)``."""
    given = args.get(0, "iterable") or UNKNOWN
    tasks = tasks_in(m, given)
    if not tasks:
        return UNKNOWN
    start = start_of(m, parallel)
    if start is None:
        return sequence(run_in_caller(m, frame, tasks))
    many = not (len(tasks) == 1 and _single(given))
    pool = start[0] == POOL
    since = moment_of(m, parallel.ident) if pool else None
    called = start_of_pools(m) if pool else start_called(m, start[0])
    if called is None:
        return UNKNOWN
    result = dispatch_tasks(
        *(m, frame, node, tasks, called, "joblib"),
        many=many,
        when=start[1],
        since=since,
        maker=parallel.site,
        maps=_maps(m, parallel) if start[0] in MAPPING_BACKENDS else None,
        daemons=pool,
    )
    return sequence(guarded(result, start[1]))


def _single(given: Value) -> bool:
    only = given.only
    return isinstance(only, Items) and only.items is not None and len(only.items) == 1


def make_task(m: Machine, frame: Frame, node: ast.AST, delayed: Delayed, args: Args) -> Value:
    """``delayed(f)(x)``."""
    positional, unplaced = list(args.positional), None
    if args.rest is not None:
        unplaced = len(positional)
        positional.extend([args.rest] * SOME)
    private: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    if isinstance(node, ast.Call):
        private, names = private_parts(frame, node, args)
    task = TaskCall(
        delayed.function,
        tuple(positional),
        args.pairs(),
        m.site(frame, node),
        private,
        names,
        delayed.library,
        _written(node),
        in_loop(m, frame),
        unplaced,
        unpacked_text(node),
        # dask has keywords of its own
        args.written and not (delayed.library == "dask" and args.keywords),
    )
    return of(task)


def _written(node: ast.AST) -> tuple[str, ...]:
    """The source text of a task's arguments; of items, if ``map`` creates it."""
    if not isinstance(node, ast.Call):
        return ()
    name = last_name(node.func)
    if not name.endswith("map"):
        return written(node)
    return items_text(node) if name == "map" else ()


def cached_call(m: Machine, frame: Frame, node: ast.AST, cached: Thing, args: Args) -> Value:
    """A call of a function that ``Memory.cache`` wraps."""
    function = cached.part("function") or UNKNOWN
    value = m.call(frame, node, function, args)
    carries = any(
        isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad == "history"
        for atom in inner(value)
    )
    if carries:
        wrapped = [*function.of(Function), *(bound.function for bound in function.of(Bound))]
        for atom in wrapped:
            place = Site(atom.module, atom.node, atom.name, atom.node)
            m.effect(frame, atom.node, atom.name, LibraryUse("cached graph", place=place))
    return value


BACKENDS = {
    **dict.fromkeys(("loky", "processes"), "loky"),
    **dict.fromkeys(("threading", "threads", "sharedmem"), "thread"),
    POOL: POOL,
    "sequential": "",
    "dask": "dask",
    "ray": "spawn",
}


ON_ALL_WORKERS = ("dask",)
"""Backends that run one job per worker by default; others run one job."""


def start_of(m: Machine, parallel: Thing) -> tuple[str, Conditions] | None:
    """The start method of `parallel`, with its conditions; None if it is sequential."""
    backend = parallel.part("backend")
    if backend is None or backend.is_none:
        backend = m.modes.backend
    n_jobs = parallel.part("n_jobs")
    if n_jobs is None or n_jobs.is_none:
        n_jobs = m.modes.n_jobs
    if n_jobs is None:
        return _start_by_default(m, parallel)
    when = starting.where_not(n_jobs, (1, None))
    if when is None:
        return None
    require = parallel.part("require")
    if require is not None and "sharedmem" in require.constants():
        return "thread", when
    if backend is None:
        prefer = parallel.part("prefer")
        if prefer is None or prefer.is_none:
            return "loky", when
        backend = prefer
    return _named_start(backend, when)


def _start_by_default(m: Machine, parallel: Thing) -> tuple[str, Conditions] | None:
    """As `start_of`, without a number of jobs."""
    own, backend = parallel.part("backend"), m.modes.backend
    if backend is None or not (own is None or own.is_none):
        return None
    if parallel.part("require") is not None:
        return None
    several = tuple(
        choice
        for choice in backend.choices
        if isinstance(choice.atom, Const) and choice.atom.value in ON_ALL_WORKERS
    )
    return _named_start(Value(several), NONE) if several else None


def start_of_pools(m: Machine) -> Start | None:
    """The start method of joblib's pools."""
    return starting.start_of(
        m, m.read(*starting.STARTS_POOLS) or starting.default_start(m, "joblib")
    )


def _named_start(backend: Value, when: Conditions) -> tuple[str, Conditions] | None:
    best: tuple[str, Conditions] | None = None
    for choice in backend.choices:
        name: Hashable = None
        if isinstance(choice.atom, Const):
            name = choice.atom.value
        if name is None and isinstance(choice.atom, Const):
            start: str | None = "loky"
        else:
            start = BACKENDS.get(name) if isinstance(name, str) else None
        if start and (best is None or (best[0] == "thread" and start != "thread")):
            best = (start, when | choice.when)
    return best


def keep_arguments(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args
) -> Value:
    """Record the arguments of an object of a ``Parallel`` subclass."""
    made = Thing("parallel", "joblib.Parallel", instance.ident, parts=parallel_parts(args))
    m.store[instance.ident, "<parallel>"] = of(made)
    return NOTHING


def run_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """A call of an object of a ``Parallel`` subclass."""
    given = m.read(instance.ident, "<parallel>")
    thing = given.only if given is not None else None
    if not isinstance(thing, Thing):
        thing = Thing("parallel", "joblib.Parallel", parts=(("n_jobs", UNKNOWN),))
    return run(m, frame, node, thing, args)
