"""GG105: the parent's part of `tape`, for programs that have loaded TensorFlow.

Nothing is inspected if no tape records. Otherwise the tasks' arguments are searched as they leave;
where the tasks run, `inside` follows what they read, and what depends on it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pytest_gradguard.runtime.frameworks.tensorflow import tensors
from pytest_gradguard.runtime.kernel import callsite, locate
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import roots_of
from pytest_gradguard.runtime.pitfalls.tapes import following, gg105, inside, own, values
from pytest_gradguard.runtime.pitfalls.tapes.inside import Asked, add, number_of
from pytest_gradguard.runtime.pitfalls.tapes.notes import Note
from pytest_gradguard.runtime.pitfalls.tapes.taped_call import TapedCall, ids_in
from pytest_gradguard.runtime.pitfalls.tapes.values import Value

_LATER = 200
"""How many objects in a batch's arguments are searched, after the first few batches."""

_taped_calls: weakref.WeakKeyDictionary[Any, TapedCall] = dropped_at_end(
    weakref.WeakKeyDictionary()
)


def begin(call: Any) -> bool | None:
    """Watch a call that begins in this thread, if a tape records in it."""
    if {"GG105", "GG101"} <= call.dropped or not own.others_record():
        return None
    taped = _taped_calls[call] = TapedCall(list(_recorders()))
    following.follow(taped)
    return True


def _recorders() -> Iterator[Any]:
    """The tapes that record around this line, found among the names of the calling functions."""
    kinds = (tf.GradientTape, tf.autodiff.ForwardAccumulator)
    seen = set()
    found = False
    frame: Any = sys._getframe(1)
    names: list[tuple[str, Any]] = []
    while frame is not None:
        for name, value in callsite.local_names(frame):
            if issubclass(type(value), kinds) and id(value) not in seen:
                seen.add(id(value))
                if value._recording:
                    found = True
                    yield value
            elif callsite.is_users(frame):
                names.append((name, value))
        frame = frame.f_back
    if not found:
        held: list[Any] = []

        def look(item: Any) -> bool:
            tape = issubclass(type(item), kinds)
            if tape and item._recording:
                held.append(item)
            return tape

        locate.find(names, look, limit=2_000)
        yield from held


def watched(call: Any, tensor: Any) -> bool:
    """Whether a tape that records around `call` watches `tensor`."""
    taped = _taped_calls.get(call)
    return taped is not None and tensors.differentiable(tensor) and taped.watched(tensor)


tensors.watching.append(watched)


def ship(call: Any, items: Any, exactly: int) -> Asked | None:
    """Search the tasks of a batch for sources, as it leaves.

    Returns:
        The request for where they run; `exactly`: for how many results.
    """
    taped = _taped_calls.get(call)
    if taped is None:
        return None
    taped.looks -= 1
    in_threads = call.kind.carries == "thread"
    taped.reports_late = call.kind.carries == "copy"
    few = {} if taped.looks >= 0 else {"limit": _LATER}
    direct = [
        value
        for value in _named(values.values_in(list(_direct_roots(items)), deep=False, **few), items)
        if _wait_for(call, taped, *value)
    ]
    found = list(direct)
    if taped.looks >= 0:
        known = {id(value.item) for value, _ in found}
        for value, function in _named(values.values_in(roots_of(items)), items):
            if id(value.item) not in known and _wait_for(call, taped, value, function):
                found.append((value, function))
        if not taped.searched:
            taped.searched = True
            for function in {id(function): function for function, _, _ in items}.values():
                held = values.values_in(values.globals_of(function))
                task: Any = (function, (), {})
                found += [(one, task) for one in held if _wait_for(call, taped, one, task)]
    chosen = [value for value, _ in found]
    if not in_threads:
        # In another process, only objects that are pickled with the tasks are requested.
        known = {id(value.item) for value, _ in direct}
        chosen = [
            value
            for value in chosen
            if not any(part in value.path for part in (".defaults", "globals["))
            and (value.tensor or id(value.item) in known)
        ]
    given = [(number_of(value.item), value.item) for value in chosen if value.tensor]
    holders = [] if in_threads else [value for value in chosen if not value.tensor]
    return exactly, given, [(ids_in(value), value.item) for value in holders]


def _direct_roots(items: Any) -> Iterator[tuple[str, Any]]:
    for index, (function, args, kwargs) in enumerate(items):
        yield f"{index}|args", args
        yield f"{index}|kwargs", kwargs
        yield from values.captures_of(function, f"{index}|")


def _named(found: list[Value], items: Any) -> Iterator[tuple[Value, Any]]:
    """The values with the paths that findings show, each with its task."""
    for value in found:
        index, bar, path = value.path.partition("|")
        task = items[int(index)] if bar else items[0]
        yield Value(path.lstrip(".") or "self" if bar else index, value.item), task


def _wait_for(call: Any, taped: TapedCall, value: Value, task: Any) -> bool:
    """Report an object that tasks get if the tape watches it, or once its variables are read.

    Returns:
        Whether the tape could want a gradient of it.
    """
    if value.tensor:
        if not following.keep(taped, value.item):
            return False
        taped.remember(value)
        _report(call, taped, inside.sample(value.path, value.item, task))
        return True
    variables = taped.remember_variables(value)
    if variables and id(value.item) not in taped.waiting:
        taped.waiting[id(value.item)] = (
            variables,
            inside.sample(value.path, value.item, task),
        )
    return bool(variables)


def _report(call: Any, taped: TapedCall, sample: Object) -> None:
    if "GG105" in call.dropped:
        return
    if taped.evidence is None:
        recorder = next((one for known in taped.recorders if (one := known()) is not None), None)
        kind = "tape" if recorder is None else type(recorder).__name__
        evidence = gg105.Evidence.of(call, kind, values.label_of)
        if evidence is None:
            return
        evidence.count += 1
        evidence.processes = call.kind.carries != "thread"
        taped.evidence = evidence
        taped.home = call.collector
    taped.evidence.keep(sample)


def on_note(call: Any, note: Note) -> None:
    """Record, in the parent, what was observed where tasks ran."""
    taped = _taped_calls.get(call)
    if taped is None:
        return
    trained = taped.were_read(note.read)
    for variables, sample in list(taped.waiting.values()):
        if variables & taped.read:
            _report(call, taped, sample)
    if trained and note.reader is not None and taped.evidence is None:
        _report(call, taped, note.reader)
    if trained or taped.tensors:
        for made in note.made:
            _report(call, taped, made.sample)
    if taped.reports_late:
        for made in note.made:
            add(taped.behind, made.sources)
        taped.settle()
    elif note.made:
        following.results(taped, note.made)
