"""GG105: what `looks.tape` does where TensorFlow is loaded.

Nothing is looked at where no tape records. Where one does, what the tasks get is searched as they
leave, what they return is searched where they run, and TensorFlow says which variables they read.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import script_ops

from pytest_gradguard.runtime import callsite, locate, used_globals
from pytest_gradguard.runtime.evidence import Object
from pytest_gradguard.runtime.frameworks import tensorflow as tensors
from pytest_gradguard.runtime.tapes import following, reads, values
from pytest_gradguard.runtime.tapes.evidence import TapeAround
from pytest_gradguard.runtime.tapes.following import Around
from pytest_gradguard.runtime.tapes.values import Value
from pytest_gradguard.runtime.tasks import roots_of, task_of

_LATER = 200
"""How many objects in the arguments of one batch are looked at, after the first few batches."""

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


class _NotTheProgram(Exception):
    """The only tape is that of a `tf.py_function`, in case somebody wants a gradient of it."""


def begin(call: Any) -> bool | None:
    """Watch a call that begins in this thread, in which a tape records."""
    if {"GG105", "GG101"} <= call.dropped:
        return None
    try:
        around = Around(list(_recorders()))
    except _NotTheProgram:
        return None
    _arounds[call] = around
    following.follow(around)
    return True


def _recorders() -> Iterator[Any]:
    """The tapes that record around this line: found among the names of the calling functions."""
    kinds = (tf.GradientTape, tf.autodiff.ForwardAccumulator)
    seen = set()
    found = in_py_function = False
    frame: Any = sys._getframe(1)
    names: list[tuple[str, Any]] = []
    while frame is not None:
        for name, value in callsite.local_names(frame):
            if issubclass(type(value), kinds) and id(value) not in seen:
                seen.add(id(value))
                if frame.f_globals is vars(script_ops):
                    in_py_function = True
                elif value._recording:
                    found = True
                    yield value
            elif callsite.is_user_file(frame.f_code.co_filename):
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
        if in_py_function and not held:
            raise _NotTheProgram
        yield from held


def watched(call: Any, tensor: Any) -> bool:
    """Whether a tape that records around `call` watches `tensor`."""
    around = _arounds.get(call)
    return around is not None and tensors.differentiable(tensor) and around.watched(tensor)


def leaves(call: Any, items: Any) -> None:
    """Look for what the tasks of a batch get, as it leaves."""
    around = _arounds.get(call)
    if around is None:
        return
    around.looks -= 1
    few = {} if around.looks >= 0 else {"limit": _LATER}
    direct = list(_direct_roots(items))
    known = set()
    for value, function in _named(values.values_in(direct, deep=False, **few), items):
        known.add(id(value.item))
        around.remember(value)
        _report(call, around, _sample(value, function))
    if around.looks < 0:
        return
    for value, function in _named(values.values_in(roots_of(items)), items):
        if id(value.item) not in known:
            _wait_for(call, around, value, function)
    if not around.searched:
        around.searched = True
        for function in {id(function): function for function, _, _ in items}.values():
            for value in values.values_in(_globals_of(function)):
                _wait_for(call, around, value, function)


def _globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    for read in used_globals.uses_of(function, classes=True).reads:
        if not issubclass(type(read.value), (type, types.FunctionType, types.ModuleType)):
            name, *attributes = read.names
            yield ".".join([f"globals[{name!r}]", *attributes]), read.value


def _direct_roots(items: Any) -> Iterator[tuple[str, Any]]:
    for index, (function, args, kwargs) in enumerate(items):
        yield f"{index}|args", args
        yield f"{index}|kwargs", kwargs
        yield from values.captures_of(function, f"{index}|")


def _named(found: list[Value], items: Any) -> Iterator[tuple[Value, Any]]:
    """The values with the paths that a finding shows, each with its task's function."""
    for value in found:
        index, _, path = value.path.partition("|")
        yield Value(path.lstrip(".") or "self", value.item), items[int(index)][0]


def _wait_for(call: Any, around: Around, value: Value, function: Any) -> None:
    """Report what a task could reach where the tape watches it, or once a task has read it."""
    around.remember(value)
    if id(value.item) not in around.waiting:
        sample = _sample(value, function)
        if not value.tensor:
            variables = {id(variable) for _, variable in values.trainables_of(value)}
            around.waiting[id(value.item)] = (variables, sample)
        elif id(value.item) in around.tensors:
            _report(call, around, sample)


def _sample(value: Value, function: Any) -> Object:
    about = values.describe(value.item)
    return Object(value.path, task_of(function), about, history=None, plain=True)


def _report(call: Any, around: Around, sample: Object) -> None:
    if "GG105" in call.dropped:
        return
    if around.evidence is None:
        recorder = next((one for known in around.recorders if (one := known()) is not None), None)
        kind = "tape" if recorder is None else type(recorder).__name__
        evidence = call.collector.evidence(
            ("GG105", call.site and call.site.key, call.backend),
            lambda: TapeAround(call.site, call.backend, kind, values.label_of),
        )
        assert isinstance(evidence, TapeAround)
        evidence.calls += 1
        evidence.add(sample)
        around.evidence = evidence
        call.note(evidence)
    else:
        around.evidence.add(sample)


def look(items: Any, results: Any, watcher: Any, process: bool) -> Note | None:
    """What the tasks of a batch did, after they have run in this thread.

    Args:
        items: the tasks.
        results: what they returned, or None.
        watcher: what notes the variables that they read, or None.
        process: whether this is a worker process.
    """
    read: Any = ()
    if watcher is not None:
        read = watcher.end()
    roots = [(f"{index}|result", result) for index, result in enumerate(results or ())]
    made = values.values_in(roots, deep=False)
    if not made and not read:
        return None
    returned = []
    for value in made[:3]:
        index, _, path = value.path.partition("|")
        returned.append(_sample(Value(path, value.item), items[int(index)][0]))
    kept = [value.item for value in made if value.tensor and hasattr(value.item, "numpy")]
    return Note(returned, kept, [tuple(v.shape) for v in read] if process else list(read))


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
    for variables, sample in list(around.waiting.values()):
        if variables & around.read:
            _report(call, around, sample)
    for sample in note.returned:
        _report(call, around, sample)
    if note.tensors and (around.read or around.tensors):
        following.results(around, note.tensors)


def undo() -> None:
    """Leave TensorFlow as it was."""
    _arounds.clear()
    following.undo()
    reads.undo()
