"""What is inspected where a parallel call begins, and again where its tasks run.

Pickling shows what is transferred; a probe shows what the tasks do with it. Checks declare theirs
(`checks.Probe`); the module of a probe has those of these functions that it needs:

``ask(call)``
    In the calling thread, as the call begins. Its result is sent to the tasks, so it has to be
    picklable; None: nothing to inspect. It runs in every call, so it has to be cheap.
``ship(call, items)``
    As `ask`, for one batch and its tasks, as the batch leaves: in any thread of the parent.
``start(call, task, forked)``
    As `ask`, for a process that the program starts itself, its function and arguments, and
    whether it inherits them. Unless the process is forked, the result has to be picklable.
``begin(asked, process)``
    Where the tasks of a batch run, before them: in a worker process, or in a thread. Returns
    ``after(items, results, error)``, or None: nothing to inspect. That function gets the results
    of the tasks (None, and the error, if one raised) and returns a note, which has to be picklable,
    or None. Without `begin`, `after` is ``inspect_batch``.
``inspect_batch(items, results, error)``
    The `after` of a probe without an `ask`, if the tasks of a batch in a worker process activate
    it (see `activate`), or an error of one does; for later batches there, `begin` is called with
    None.
``activated_by(error)``
    Whether the error of a task activates the probe.
``on_note(call, note)``
    Back in the parent: the note that `after` returned. Some libraries send it as plain data
    (`plain_data`), typed by the annotation of `note`.
``current_note(items)``
    In a process that the program starts itself, with its function and arguments: the current
    state, as a note that replaces the earlier ones. It holds once the process has ended.
``on_sent(item)``
    There: the process sends `item` to another one.
``on_replaced(call, note, earlier, running)``
    Back in the parent: a note on the current state, the note that it replaces, or None, and
    whether the process goes on. Without it, `on_note` gets the last note once the process has
    ended.
``wrap_tasks(call, tasks)``
    The caller's tasks, if the probe has asked; they may be wrapped, since joblib pulls a generator
    from threads of its own.

A fault in any of them becomes one warning, and the call goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

from pytest_gradguard.runtime.kernel import checks, plain_data, registry
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.collector import here
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.state import dropped_at_end

After = Callable[[Any, Any, "BaseException | None"], Any]
Notes = list[tuple[str, Any]]


_OF_THE_KERNEL = {
    "simulated": "simulated",
    "seeds": "task_seeds",
    "modules": "inherited_modules",
}
"""Probes that serve no pitfall, by owner: their modules. The first is sent before all others."""
_HOME = __name__.rpartition(".")[0]


def _declared_by(owner: str) -> tuple[Probe, ...]:
    """The probes of a check, or of a module of the kernel."""
    module = (
        import_module(f"{_HOME}.{_OF_THE_KERNEL[owner]}")
        if owner in _OF_THE_KERNEL
        else checks.load(owner.upper())
    )
    probes: tuple[Probe, ...] = getattr(module, "PROBES", ())
    return probes


@cache
def _probe(name: str) -> Probe:
    """The probe of that name."""
    declared = _declared_by(name.partition("_")[0])
    return next(probe for probe in declared if probe.name == name)


@cache
def _all() -> tuple[Probe, ...]:
    owners = (*_OF_THE_KERNEL, *checks.codes())
    return tuple(probe for owner in owners for probe in _declared_by(owner))


@cache
def _asking() -> tuple[Probe, ...]:
    return tuple(probe for probe in _all() if probe.asks)


@cache
def _module(name: str) -> Any:
    """The module with the functions of a probe."""
    return import_module(_probe(name).module)


# -- in the parent -------------------------------------------------------------------------------


def ask(call: Any) -> None:
    """Have every probe ask as `call` begins: fills its `asked` and its `asking`."""
    global _wanted
    if _wanted.loaded != len(sys.modules):
        _wanted = _wanted_now()
    for probe, question, ship in _wanted.probes:
        try:
            if question is not None:
                answer = question(call)
                if answer is not None:
                    call.asked[probe.name] = answer
                elif probe.only_asked:
                    continue
            if ship is not None:
                call.asking.append((probe, ship))
        except Exception as error:
            fault(error)


class _Wanted(NamedTuple):
    """The probes that ask with this number of loaded modules, and their `ask` and `ship`."""

    loaded: int
    probes: tuple[tuple[Probe, Callable[[Any], Any] | None, Callable[[Any, Any], Any] | None], ...]


_wanted = _Wanted(-1, ())


def _wanted_now() -> _Wanted:
    found = []
    for probe in _asking():
        if any(name in sys.modules for name in probe.asks):
            try:
                module = _module(probe.name)
            except Exception as error:
                fault(error)
                continue
            found.append((probe, getattr(module, "ask", None), getattr(module, "ship", None)))
    return _Wanted(len(sys.modules), tuple(found))


class Questions(NamedTuple):
    """The probes' questions for each batch of a call.

    Attributes:
        kind: the kind of its workers.
        ships: the function `ship` of each probe that asks, by its name.
        lasting: the questions depend only on the functions of the tasks.
    """

    kind: registry.Workers
    ships: tuple[tuple[str, Callable[[Any, Any], Any]], ...]
    lasting: bool


def questions(call: Any) -> Questions:
    """The probes' questions for each batch of `call`."""
    known: Questions | None = call.questions
    if known is None or known.kind is not call.kind:
        known = call.questions = _questions(call.kind, tuple(call.asking))
    return known


@lru_cache(maxsize=100)
def _questions(
    kind: registry.Workers, asking: tuple[tuple[Probe, Callable[[Any, Any], Any]], ...]
) -> Questions:
    wanted = [(probe, ship) for probe, ship in asking if probe.ships is None or probe.ships(kind)]
    ships = tuple((probe.name, ship) for probe, ship in wanted)
    return Questions(kind, ships, all(probe.by_function for probe, _ in wanted))


def ship(call: Any, items: Any) -> Mapping[str, Any]:
    """The questions for `call`, and for one batch of it, the tasks `items`."""
    asked: Mapping[str, Any] = call.asked
    for name, question in questions(call).ships:
        try:
            answer = question(call, items)
        except Exception as error:
            fault(error)
            continue
        if answer is not None:
            asked = {**asked, name: answer}
    return asked


def start(call: Any, task: Any, forked: bool) -> dict[str, Any]:
    """The questions for a process that `call` starts, to run `task`."""
    asked = {}
    for probe in _all():
        if not probe.starts or probe.code in call.dropped:
            continue
        if any(name in sys.modules for name in probe.asks):
            try:
                answer = _module(probe.name).start(call, task, forked)
            except Exception as error:
                fault(error)
                continue
            if answer is not None:
                asked[probe.name] = answer
    return asked


def starts(name: str) -> bool:
    """Whether the probe of that name inspects processes that the program starts itself."""
    return _probe(name).starts


def wrap_tasks(call: Any, tasks: Any) -> Any:
    """The `tasks` of `call`, wrapped by the probes."""
    for name in call.asked:
        try:
            wrap = getattr(_module(name), "wrap_tasks", None)
            if wrap is not None:
                tasks = wrap(call, tasks)
        except Exception as error:
            fault(error)
    return tasks


def deliver(call: Any, notes: Notes) -> None:
    """Pass the probes their notes from where tasks of `call` ran."""
    for name, note in notes:
        try:
            _module(name).on_note(call, note)
        except Exception as error:
            fault(error)


def replace(call: Any, name: str, note: Any, earlier: Any, *, running: bool) -> None:
    """Update the state of the probe `name` in a process that `call` has started.

    Args:
        call, name, note: the call, the probe and its note.
        earlier: the note that it replaces, or None.
        running: the process goes on.
    """
    replaced = getattr(_module(name), "on_replaced", None)
    if replaced is not None:
        attempt(replaced, call, note, earlier, running)
    elif not running:
        deliver(call, [(name, note)])


def read(texts: Sequence[tuple[str, str]]) -> Notes:
    """Notes from plain data, each of the type that `on_note` of its probe takes.

    Raises:
        ValueError: one is not.
    """
    return [(name, plain_data.loads(text, note_type(name))) for name, text in texts]


@cache
def note_type(name: str) -> Any:
    """The type of the notes of the probe of that name.

    Raises:
        ValueError: no probe of that name takes notes.
    """
    if name not in {probe.name for probe in _all()} or not hasattr(_module(name), "on_note"):
        raise ValueError(f"no probe that hears of notes: {name!r}")
    return get_type_hints(_module(name).on_note)["note"]


# -- where the tasks run -------------------------------------------------------------------------


_Begin = Callable[[Any, bool], "After | None"]
active: dict[str, _Begin] = dropped_at_end({})
_NOTHING: Sequence[Any] = ()


def activate(name: str) -> None:
    """Have a probe without a question inspect this and every later batch in this worker process.

    Most tasks never activate it, and it then costs nothing.
    """
    here.quiet = False
    if name not in active:
        try:
            active[name] = _begins(name)
        except Exception as error:
            fault(error)


def deactivate(name: str) -> None:
    """Deactivate a probe until it is activated again."""
    active.pop(name, None)


def _activate_by(error: BaseException | None) -> None:
    """Activate the probes that the error of a task concerns."""
    probes = [probe.name for probe in _all() if probe.by_error]
    for _ in range(_CHAINED):
        if error is None:
            return
        for name in probes:
            try:
                if _module(name).activated_by(error):
                    activate(name)
            except Exception as mistake:
                fault(mistake)
        error = error.__cause__ or error.__context__


_CHAINED = 10
"""How many errors, each raised from the next, are checked."""


def begin(asked: Mapping[str, Any], *, process: bool) -> Sequence[tuple[str, After]]:
    """Begin the probes' inspection, before the tasks of a batch run.

    Args:
        asked: the parent's questions.
        process: whether this is a worker process; otherwise a thread of the parent.
    """
    if not asked and not (process and active):
        return _NOTHING
    begun: list[tuple[str, After]] = []
    for name in asked:
        needs = _probe(name).needs
        if needs is None or needs in sys.modules:
            _begin(begun, name, _begins(name), asked[name], process)
    if process:
        for name, begins in list(active.items()):
            if name not in asked:
                _begin(begun, name, begins, None, process)
    return begun


def stateful(begun: Sequence[tuple[str, After]]) -> list[tuple[str, Any]]:
    """The names and modules of the begun probes that report a current state."""
    modules = [(name, _module(name)) for name, _ in begun]
    return [(name, module) for name, module in modules if hasattr(module, "current_note")]


changed: list[Callable[[], object]] = []
"""Called in a process that the program has started, when a state may have changed."""


def note_change() -> None:
    """Record that the state of a probe may have changed."""
    for look in changed:
        attempt(look)


def _begins(name: str) -> _Begin:
    """How the probe begins; without a `begin`, its `inspect_batch` runs after the tasks."""
    module = _module(name)
    begins: _Begin = getattr(module, "begin", None) or (lambda asked, process: module.inspect_batch)
    return begins


def _begin(
    begun: list[tuple[str, After]], name: str, begins: _Begin, asked: Any, process: bool
) -> None:
    try:
        after = begins(asked, process)
    except Exception as error:
        fault(error)
        return
    if after is not None:
        begun.append((name, after))


def end(
    begun: Sequence[tuple[str, After]],
    items: Any,
    results: Any,
    error: BaseException | None = None,
    *,
    process: bool,
) -> Notes:
    """The probes' notes, after the tasks have run."""
    notes: Notes = []
    if error is not None and process:
        _activate_by(error)
    if not begun and not (process and active):
        return notes
    afters = list(begun)
    if process:
        known = [name for name, _ in begun]
        for name in list(active):
            after = None if name in known else getattr(_module(name), "inspect_batch", None)
            if after is not None:
                afters.append((name, after))
    for name, after in reversed(afters):
        try:
            note = after(items, results, error)
        except Exception as mistake:
            fault(mistake)
            continue
        if note is not None:
            notes.append((name, note))
    return notes
