"""GG105: what `tape` does in the parent where TensorFlow is loaded.

Nothing is looked at where no tape records. Where one does, what the tasks get is searched as they
leave; what they read, and what hangs on it, is followed where they run (see `inside`).
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
from pytest_gradguard.runtime.pitfalls.tapes.around import Around, ids_in
from pytest_gradguard.runtime.pitfalls.tapes.inside import Asked, add, number_of
from pytest_gradguard.runtime.pitfalls.tapes.notes import Note
from pytest_gradguard.runtime.pitfalls.tapes.values import Value

_LATER = 200
"""How many objects in the arguments of one batch are looked at, after the first few batches."""

_arounds: weakref.WeakKeyDictionary[Any, Around] = dropped_at_end(weakref.WeakKeyDictionary())


def begin(call: Any) -> bool | None:
    """Watch a call that begins in this thread, in which a tape records."""
    if {"GG105", "GG101"} <= call.dropped or not own.others_record():
        return None
    around = _arounds[call] = Around(list(_recorders()))
    following.follow(around)
    return True


def _recorders() -> Iterator[Any]:
    """The tapes that record around this line: found among the names of the calling functions."""
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
    around = _arounds.get(call)
    return around is not None and tensors.differentiable(tensor) and around.watched(tensor)


tensors.watching.append(watched)


def leaves(call: Any, items: Any, exactly: int) -> Asked | None:
    """Look for what the tasks of a batch get, as it leaves.

    Returns:
        What is asked where they run; `exactly`: for how many results.
    """
    around = _arounds.get(call)
    if around is None:
        return None
    around.looks -= 1
    in_threads = call.kind.carries == "thread"
    around.apart = call.kind.carries == "copy"
    few = {} if around.looks >= 0 else {"limit": _LATER}
    direct = [
        value
        for value in _named(values.values_in(list(_direct_roots(items)), deep=False, **few), items)
        if _wait_for(call, around, *value)
    ]
    found = list(direct)
    if around.looks >= 0:
        known = {id(value.item) for value, _ in found}
        for value, function in _named(values.values_in(roots_of(items)), items):
            if id(value.item) not in known and _wait_for(call, around, value, function):
                found.append((value, function))
        if not around.searched:
            around.searched = True
            for function in {id(function): function for function, _, _ in items}.values():
                held = values.values_in(values.globals_of(function))
                task: Any = (function, (), {})
                found += [(one, task) for one in held if _wait_for(call, around, one, task)]
    chosen = [value for value, _ in found]
    if not in_threads:
        # In another process, only what is pickled for the tasks anyway is asked about.
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
    """The values with the paths that a finding shows, each with its task."""
    for value in found:
        index, bar, path = value.path.partition("|")
        task = items[int(index)] if bar else items[0]
        yield Value(path.lstrip(".") or "self" if bar else index, value.item), task


def _wait_for(call: Any, around: Around, value: Value, task: Any) -> bool:
    """Report what tasks get where the tape watches it, or once they have read its variables.

    Returns:
        Whether the tape could want a gradient of it.
    """
    if value.tensor:
        if not following.keep(around, value.item):
            return False
        around.remember(value)
        _report(call, around, inside.sample(value.path, value.item, task))
        return True
    variables = around.remember_variables(value)
    if variables and id(value.item) not in around.waiting:
        around.waiting[id(value.item)] = (
            variables,
            inside.sample(value.path, value.item, task),
        )
    return bool(variables)


def _report(call: Any, around: Around, sample: Object) -> None:
    if "GG105" in call.dropped:
        return
    if around.evidence is None:
        recorder = next((one for known in around.recorders if (one := known()) is not None), None)
        kind = "tape" if recorder is None else type(recorder).__name__
        evidence = gg105.Evidence.of(call, kind, values.label_of)
        if evidence is None:
            return
        evidence.count += 1
        evidence.processes = call.kind.carries != "thread"
        around.evidence = evidence
        around.home = call.collector
    around.evidence.keep(sample)


def heard(call: Any, note: Note) -> None:
    """Take, in the parent, what was seen where tasks ran."""
    around = _arounds.get(call)
    if around is None:
        return
    trained = around.were_read(note.read)
    for variables, sample in list(around.waiting.values()):
        if variables & around.read:
            _report(call, around, sample)
    if trained and note.reader is not None and around.evidence is None:
        _report(call, around, note.reader)
    if trained or around.tensors:
        for made in note.made:
            _report(call, around, made.sample)
    if around.apart:
        for made in note.made:
            add(around.behind, made.sources)
        around.settle()
    elif note.made:
        following.results(around, note.made)
