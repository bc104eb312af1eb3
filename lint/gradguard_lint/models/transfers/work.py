"""Pools and executors: work that they are handed, and what comes back."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import EMPTY, closed, merged, sequence, side_by_side
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Const,
    External,
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
from gradguard_lint.engine.arguments import SOME, argument_node
from gradguard_lint.engine.calls import call_back
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.quoting import (
    item_text,
    items_text,
    part_text,
    quoted,
    unpacked_text,
    unpacked_texts,
    written,
)
from gradguard_lint.engine.tasks import hand_out, in_line
from gradguard_lint.engine.truth import truthy
from gradguard_lint.engine.turns import in_loop, made_in_turn, private_items, private_parts
from gradguard_lint.engine.waiting import forget_start, moment_of, started, wait_for
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Hands, Row
from gradguard_lint.models.transfers.devices import RANK
from gradguard_lint.models.transfers.starting import default_start, start_of, start_value, starts_of
from pytest_gradguard.records import replace


def pool(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A pool or an executor is made; a pool's processes are forked here."""
    return made_pool(m, frame, node, name, args, row, start_value(m, row, args))


def made_pool(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row, start: Value
) -> Value:
    parts = [("start", start)]
    workers = args.get(0, "max_workers", "processes", "n_jobs")
    if workers is not None and workers.constant == 1:
        parts.append(("single", workers))
    positions = (1, 2) if row.does == "pool" else (2, 3)
    initializer = args.get(positions[0], "initializer")
    if initializer is not None and not initializer.is_none:
        given = args.get(positions[1], "initargs")
        said = argument_node(node, positions[1], "initargs")
        names = quoted(said.elts) if isinstance(said, ast.Tuple) else ()
        site = m.site(frame, node)
        parts.append(
            ("initializer", of(TaskCall(initializer, _tuple(given), (), site, names=names)))
        )
    ident = m.ident_at(node)
    if row.forks == "made":
        started(m, ident)
    elif moment_of(m, ident) is not None:
        forget_start(m, ident)
    kind = "pool" if row.does == "pool" else "executor"
    return of(
        Thing(kind, name, ident, m.worker_ident, parts=tuple(parts), site=m.site(frame, node))
    )


_POOL = "<pool>"


def init_pool(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``__init__`` of the pool or executor that a project's class extends."""
    registry = registry_of(m)
    for base in instance.cls.outside():
        name = registry.canonical(base.name) if isinstance(base, External) else ""
        if row := registry.row(name):
            m.store[instance.ident, _POOL] = pool(m, frame, node, name, args, row)
    return NOTHING


def pool_method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value | None:
    """A method that a project's class has from the pool or executor that it extends."""
    for thing in (m.read(instance.ident, _POOL) or UNKNOWN).things("pool", "executor"):
        # Such a class is made, as a rule, so that its processes are no daemons.
        return method(m, frame, node, thing, name, args, daemons=False)
    return None


def method(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    thing: Thing,
    name: str,
    args: Args,
    *,
    daemons: bool = True,
) -> Value | None:
    """A method of a pool, executor or client; whether the processes of a pool are `daemons`."""
    row = registry_of(m).row(thing.name)
    if row is None:
        return None
    if name == "gather":
        return sequence(result_of(m, element_of(m, args.get(0, "futures") or UNKNOWN)))
    if name == "scatter":
        return args.get(0, "data")  # it stands for what was sent, wherever a task gets it
    hands = row.methods.get(name)
    if hands is None:
        waits = args.get(0, "wait") if name == "shutdown" else None
        if name in ("join", "shutdown") and (waits is None or waits.constant is True):
            wait_for(m, thing.ident)
        return None
    starts = starts_of(m, thing.part("start"))
    since = None
    if row.forks != "call" and not m.in_process_worker:
        since = moment_of(m, thing.ident)
        if since is None and row.forks == "work":
            started(m, thing.ident)
    single = thing.part("single") is not None
    tasks = [task] if (task := task_given(m, frame, node, hands, args, thing.name)) else []
    if not starts:
        in_line(m, frame, tasks)
        return UNKNOWN
    until = {_future_ident(m, node), thing.ident} if hands.gives in ("future", "futures") else ()
    results = [
        hand_out(
            m,
            frame,
            node,
            tasks,
            start,
            thing.name.rpartition(".")[0],
            many=(hands.many or in_loop(m, frame)) and not single,
            initializer=_initializer(thing),
            when=when,
            since=since,
            forking_pickler=row.forking_pickler,
            meant=row.gpu or thing.part("meant") is not None,
            maker=thing.site,
            daemons=daemons and row.does == "pool",
            each=not hands.many,
            until=frozenset(until),
            queue=thing.ident if single else 0,
        )
        for start, when in starts
    ]
    return _given(m, frame, node, hands, join(results), args)


def _initializer(thing: Thing) -> TaskCall | None:
    """What the workers of a pool or executor call as they start."""
    part = thing.part("initializer")
    only = part.only if part is not None else None
    return only if isinstance(only, TaskCall) else None


def _tuple(value: Value | None) -> tuple[Value, ...]:
    return tuple(side_by_side(value) or ()) if value is not None else ()


def _is_tuple(value: Value | None) -> bool:
    """Whether `value` is a tuple of known length, or not given."""
    return value is None or (
        side_by_side(value) is not None
        and all(isinstance(atom, Items) and atom.kind == "tuple" for atom in value.atoms)
    )


def task_given(
    m: Machine, frame: Frame, node: ast.AST, hands: Hands, args: Args, library: str
) -> TaskCall | None:
    """The task that a call hands out."""
    position, word = hands.function
    function = args.get(position, word, "func", "fn")
    if function is None or function.is_none:
        return None
    return task_of(m, frame, node, hands, args, function, position + 1, library)


def task_of(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    hands: Hands,
    args: Args,
    function: Value,
    first: int,
    library: str,
) -> TaskCall:
    """The task that calls `function` with what is given from position `first` on."""
    private: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    at = first
    if isinstance(node, ast.Call):
        private, names = private_parts(frame, node, args)
        if not any(isinstance(item, ast.Starred) for item in node.args):
            at += len(node.args) - len(args.positional)  # others give some of them, or take some
    positional: tuple[Value, ...] = ()
    keywords: dict[str, Value] = {}
    said: tuple[str, ...] = ()
    unplaced, unplaced_name = None, ""
    each = True
    exact = args.rest is None and not args.open and not hands.more
    if hands.items == "each":
        positional = tuple(element_of(m, value) for value in args.positional[first:])
        said = items_text(node, at)
        exact = exact and not args.perhaps and hands.own.issuperset(args.keywords)
    elif hands.items == "one":
        positional = (element_of(m, args.get(*hands.args) or UNKNOWN),)
        said = (item_text(argument_node(node, *hands.args)),)
        exact = exact and len(args.positional) <= first + 1  # pathos takes one for each argument
    elif hands.items == "spread":
        element = element_of(m, args.get(*hands.args) or UNKNOWN)
        positional = _tuple(element) or (element,)
        said = unpacked_texts(argument_node(node, *hands.args), len(positional))
    elif hands.items == "unpacked":
        element = element_of(m, args.get(*hands.args) or UNKNOWN)
        positional = _tuple(element)
        said = unpacked_texts(argument_node(node, *hands.args), len(positional))
        exact = exact and _is_tuple(element)
        if not positional and not element.is_unknown:
            positional, unplaced = tuple([element_of(m, element)] * 4), 0
            unplaced_name = part_text(argument_node(node, *hands.args))
    elif hands.items == "ranked":
        positional = (unknown(RANK), *_tuple(args.get(*hands.args)))
        given = argument_node(node, *hands.args)
        said = ("", *quoted(given.elts)) if isinstance(given, ast.Tuple) else ()
        exact = exact and _is_tuple(args.get(*hands.args))
    elif hands.items == "packed":
        positional = _tuple(args.get(*hands.args))
        table = args.get(*hands.keywords)
        exact = exact and _is_tuple(args.get(*hands.args))
        if table is not None:
            extra = merged(EMPTY, table)
            exact = exact and closed(extra)
            keywords = {str(key): value for key, value in (*extra.entries, *extra.perhaps)}
        places = (hands.args, hands.keywords, hands.function)
        tuple_, dict_, called = (argument_node(node, *place) for place in places)
        private = private_items(frame, tuple_, len(positional)) if tuple_ else frozenset()
        said = quoted(tuple_.elts) if isinstance(tuple_, (ast.Tuple, ast.List)) else ()
        if called and private_items(frame, called, 1):
            private |= {-1}
        names = frozenset(keywords) if dict_ and private_items(frame, dict_, 1) else frozenset()
        private |= _made_in_turn(m, function, positional)
        each = False
    elif hands.items == "rest":
        positional = tuple(args.positional[first:])
        exact = exact and args.written
        if args.rest is not None:
            unplaced, unplaced_name = len(positional), unpacked_text(node)
            positional = (*positional, *[args.rest] * SOME)
        keywords = {
            key: value
            for key, value in args.pairs()
            if key not in hands.own and key != hands.function[1]
        }
        private = frozenset(index - at for index in private) | _made_in_turn(
            m, function, positional
        )
        said = ("",) * -at + written(node, max(at, 0))
        each = False
    if hands.items == "ranked":
        private = frozenset({0})
    elif each:
        private = frozenset(range(len(positional)))
    return TaskCall(
        function,
        positional,
        tuple(keywords.items()),
        m.site(frame, node),
        private,
        names,
        library,
        said,
        hands.many or in_loop(m, frame),
        unplaced,
        unplaced_name,
        exact,
    )


def _made_in_turn(m: Machine, function: Value, values: tuple[Value, ...]) -> frozenset[int]:
    """Which of `values` no other turn of the loop around gives to its task; -1: the function."""
    given = enumerate((function, *values), -1)
    return frozenset(index for index, value in given if made_in_turn(m, value))


def _given(
    m: Machine, frame: Frame, node: ast.AST, hands: Hands, result: Value, args: Args
) -> Value:
    """What the call gives back."""
    several = hands.items in ("each", "one", "spread", "unpacked")
    callback = args.get(None, "callback")
    if callback is not None and not callback.is_unknown and not callback.is_none:
        given = Args([sequence(result) if several else result])
        call_back(m, frame, node, callback, given)
    if hands.gives == "list":
        return sequence(result)
    if hands.gives == "future":
        return future(sequence(result) if several else result, _future_ident(m, node))
    if hands.gives == "futures":
        return sequence(future(result, _future_ident(m, node)))
    return result if hands.gives == "value" else NOTHING


def _future_ident(m: Machine, node: ast.AST) -> int:
    """The identity of what a call at `node` gives that hands out work."""
    return m.ident_at(node, "future")


def future(result: Value, ident: int = 0) -> Value:
    """Something that holds `result`, or will."""
    return of(Thing("future", "future", ident, parts=(("result", result),)))


def result_of(m: Machine, value: Value) -> Value:
    """What futures among `value` hold, for which this waits."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Thing) and atom.kind == "future":
            wait_for(m, atom.ident)
            return atom.part("result") or UNKNOWN
        if isinstance(atom, Items):
            return sequence(result_of(m, atom.element), atom.kind)
        return UNKNOWN if isinstance(atom, (Thing, Unknown)) else of(atom)

    return value.map(change)


def results(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``get(futures)``."""
    return result_of(m, m.filtered(args.get(*row.argument) or UNKNOWN))


def elements(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``as_completed(futures)``."""
    futures = element_of(m, args.get(*row.argument) or UNKNOWN)
    result_of(m, futures)
    return sequence(futures)


def waited(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``wait(futures)``: those that are done, and those that are not."""
    element = element_of(m, args.get(*row.argument) or UNKNOWN)
    if not args.keywords.keys() & {"timeout", "return_when"}:
        result_of(m, element)
    futures = sequence(element)
    return of(Items("tuple", (futures, futures), futures))


# -- methods of things that are not known ----------------------------------------------------------


def to_thread(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``asyncio.to_thread(f, ...)``."""
    return _in_a_thread(m, frame, node, args)


def _in_a_thread(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
    """A call in one of the threads that the event loop keeps."""
    row = registry_of(m).exact["concurrent.futures.ThreadPoolExecutor"]
    pool = Thing("executor", row.names, parts=(("start", constant(row.start)),))
    return method(m, frame, node, pool, "submit", args) or UNKNOWN


def by_method(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> Value | None:
    """A method of something unknown that hands out work, as its name and arguments show."""
    if name == "run_in_executor" and len(args.positional) >= 2:
        if args.positional[0].is_none:  # the threads of the event loop
            given = replace(args, positional=args.positional[1:])
            return _in_a_thread(m, frame, node, given)
        for thing in args.positional[0].things("executor"):
            given = replace(args, positional=args.positional[1:])
            return method(m, frame, node, thing, "submit", given)
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
            hand_out(m, frame, node, [task], start, "datasets", answers=False, single=ranked)
    return None
