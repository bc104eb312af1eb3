"""GG105: what `looks.tape` does where TensorFlow is loaded.

Nothing is looked at where no tape records. Where one does, what the tasks get is searched as they
leave, what they return is searched where they run, and TensorFlow says which variables they read.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import record

from pytest_gradguard.runtime import callsite, locate, tape_following, tape_values
from pytest_gradguard.runtime.evidence import Object
from pytest_gradguard.runtime.frameworks import tensorflow as tensors
from pytest_gradguard.runtime.tape_evidence import TapeAround
from pytest_gradguard.runtime.tape_following import Around
from pytest_gradguard.runtime.tape_values import Value
from pytest_gradguard.runtime.tasks import roots_of, task_of
from pytest_gradguard.runtime.used_globals import used_globals

_arounds: weakref.WeakKeyDictionary[Any, Around] = weakref.WeakKeyDictionary()


class Note(NamedTuple):
    """What was seen where tasks ran.

    Attributes:
        returned: descriptions of what they returned.
        tensors: the tensors among it; they are pickled together with the results, so that they
            are the very objects that the parent gets.
        read: the trainable variables that they read: themselves in a thread of the parent, their
            shapes from another process.
    """

    returned: list[Object]
    tensors: list[Any]
    read: list[Any]


def begin(call: Any) -> bool | None:
    """Watch a call that begins in this thread, in which a tape records."""
    if {"GG105", "GG101"} <= call.dropped:
        return None
    around = Around(list(_recorders()))
    _arounds[call] = around
    tape_following.follow(around)
    return True


def _recorders() -> Iterator[Any]:
    """The tapes that record around this line: found among the names of the calling functions."""
    kinds = (tf.GradientTape, tf.autodiff.ForwardAccumulator)
    seen = set()
    frame: Any = sys._getframe(1)
    names: list[tuple[str, Any]] = []
    while frame is not None:
        for name, value in callsite.local_names(frame):
            if isinstance(value, kinds) and id(value) not in seen:
                seen.add(id(value))
                if value._recording:
                    yield value
            elif callsite.is_user_file(frame.f_code.co_filename):
                names.append((name, value))
        frame = frame.f_back
    if not seen:
        held: list[Any] = []

        def look(item: Any) -> bool:
            if isinstance(item, kinds) and item._recording:
                held.append(item)
            return isinstance(item, kinds)

        locate.find(names, look, limit=2_000)
        yield from held


def watched(call: Any, tensor: Any) -> bool:
    """Whether a tape that records around `call` watches `tensor`."""
    around = _arounds.get(call)
    return around is not None and tensors.differentiable(tensor) and around.watched(tensor)


def leaves(call: Any, items: Any) -> None:
    """Look for what the tasks of a batch get, as it leaves."""
    around = _arounds.get(call)
    if around is None or around.looks <= 0:
        return
    around.looks -= 1
    for value in tape_values.values_in(roots_of(items)):
        index, _, path = value.path.partition("|")
        named = Value(path.lstrip(".") or "self", value.item)
        around.remember(named)
        _report(call, around, _sample(named, items[int(index)][0]))
    if around.globals is None:
        around.globals = []
        for function in {id(function): function for function, _, _ in items}.values():
            roots = [(f"globals[{name!r}]", value) for name, value in used_globals(function)]
            for value in tape_values.values_in(roots):
                around.remember(value)
                sample = _sample(value, function)
                around.globals.append((value, sample))
                if value.tensor and id(value.item) in around.tensors:
                    _report(call, around, sample)


def _sample(value: Value, function: Any) -> Object:
    about = tape_values.describe(value.item)
    return Object(value.path, task_of(function), about, history=None, plain=True)


def _report(call: Any, around: Around, sample: Object) -> None:
    if "GG105" in call.dropped:
        return
    if around.evidence is None:
        recorder = next((one for known in around.recorders if (one := known()) is not None), None)
        kind = "tape" if recorder is None else type(recorder).__name__
        evidence = call.collector.evidence(
            ("GG105", call.site and call.site.key, call.backend),
            lambda: TapeAround(call.site, call.backend, kind, tape_values.label_of),
        )
        assert isinstance(evidence, TapeAround)
        evidence.calls += 1
        evidence.add(sample)
        around.evidence = evidence
        call.note(evidence)
    else:
        around.evidence.add(sample)


def watch_reads() -> Any:
    """Let TensorFlow note, from now on and in this thread, which variables are read."""
    watcher = record.VariableWatcher()
    watcher.__enter__()
    return watcher


def look(items: Any, results: Any, watcher: Any, process: bool) -> Note | None:
    """What the tasks of a batch did, after they have run in this thread.

    Args:
        items: the tasks.
        results: what they returned, or None.
        watcher: what `watch_reads` gave, or None.
        process: whether this is a worker process.
    """
    read: Any = ()
    if watcher is not None:
        watcher.__exit__(None, None, None)
        read = watcher.watched_variables()
    roots = [(f"{index}|result", result) for index, result in enumerate(results or ())]
    values = tape_values.values_in(roots)
    if not values and not read:
        return None
    returned = []
    for value in values[:3]:
        index, _, path = value.path.partition("|")
        returned.append(_sample(Value(path, value.item), items[int(index)][0]))
    made = [value.item for value in values if value.tensor and hasattr(value.item, "numpy")]
    return Note(returned, made, [tuple(v.shape) for v in read] if process else list(read))


def heard(call: Any, note: Note) -> None:
    """Judge, in the parent, what was seen where tasks ran."""
    around = _arounds.get(call)
    if around is None:
        return
    for identity, (reference, _) in list(around.variables.items()):
        variable = reference()
        if variable is not None and any(
            seen == tuple(variable.shape) if isinstance(seen, tuple) else seen is variable
            for seen in note.read
        ):
            around.read.add(identity)
    for value, sample in around.globals or ():
        if any(id(variable) in around.read for _, variable in tape_values.trainables_of(value)):
            _report(call, around, sample)
    for sample in note.returned:
        _report(call, around, sample)
    if note.tensors and (around.read or around.tensors):
        tape_following.results(around, note.tensors)


def undo() -> None:
    """Leave TensorFlow as it was."""
    _arounds.clear()
    tape_following.undo()
