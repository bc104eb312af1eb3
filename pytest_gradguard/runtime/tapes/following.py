"""What becomes, under the user's tapes, of results that workers made: which gradients lack a part.

While a tape of the user's records, a tape of ours, its *shadow*, records beside it, and watches
nothing but results of workers. What hangs on such a result is known to it, and no gradient is ever
computed for that. TensorFlow's sets of tapes are per thread: in a set that holds one tape only, its
own bookkeeping says whether that tape watches a tensor.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import tape as tapes

from pytest_gradguard.runtime import callsite
from pytest_gradguard.runtime.evidence import Object
from pytest_gradguard.runtime.faults import fault
from pytest_gradguard.runtime.frameworks import tensorflow as tensors
from pytest_gradguard.runtime.frameworks import tensorflow_tapes
from pytest_gradguard.runtime.tapes import values
from pytest_gradguard.runtime.tapes.evidence import TapeAround


def watches(recorder: Any, candidates: list[Any]) -> bool:
    """Whether a tape or forward accumulator of the user's watches one of these tensors."""
    if isinstance(recorder, tf.autodiff.ForwardAccumulator):
        handle = recorder._accumulator
        return any(
            pywrap_tfe.TFE_Py_ForwardAccumulatorJVP(handle, one) is not None for one in candidates
        )
    tape = recorder._tape
    return tape is not None and _watched(tape._tape, candidates)


def _watched(handle: Any, candidates: list[Any]) -> bool:
    return bool(
        candidates
        and _alone(handle, lambda: pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes(candidates))
    )


def _alone(handle: Any, ask: Any) -> Any:
    """What `ask` gives in a thread where no tape records but the one behind `handle`."""
    answers: list[Any] = []

    def asking() -> None:
        pywrap_tfe.TFE_Py_TapeSetAdd(handle)
        try:
            answers.append(ask())
        finally:
            pywrap_tfe.TFE_Py_TapeSetRemove(handle)

    if pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        asking()
    else:
        _in_another_thread(asking)
    return answers[0]


def _in_another_thread(function: Any) -> None:
    done = _thread.allocate_lock()
    errors: list[Exception] = []
    done.acquire()

    def run() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]


class Around:
    """One parallel call around which tapes record."""

    def __init__(self, recorders: list[Any]) -> None:
        self.recorders = [weakref.ref(recorder) for recorder in recorders]
        self.evidence: TapeAround | None = None
        self.variables: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.tensors: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.read: set[int] = set()
        self.waiting: dict[int, tuple[set[int], Object]] = {}
        self.searched = False
        self.looks = 8

    def watched(self, tensor: Any) -> bool:
        """Whether a tape that records around the call watches `tensor`."""
        for reference in self.recorders:
            recorder = reference()
            if recorder is not None and watches(recorder, [tensor]):
                return True
        return False

    def remember(self, value: values.Value) -> None:
        """Remember, weakly, what a task gets."""
        if value.tensor:
            if tf.is_tensor(value.item) and self.watched(value.item):
                self.tensors[id(value.item)] = (weakref.ref(value.item), value.path)
        else:
            for path, variable in values.trainables_of(value):
                self.variables.setdefault(id(variable), (weakref.ref(variable), path))

    def path_of(self, source: Any) -> str | None:
        """The path by which the tasks got a source that they used, or None."""
        identity = id(source)
        known = self.tensors.get(identity)
        if known is None and identity in self.read:
            known = self.variables.get(identity)
        return known[1] if known is not None and known[0]() is source else None


class _Shadow:
    """The tape beside one of the user's, and the parallel calls that it has stood around."""

    def __init__(self, recorder: Any, forget: Any) -> None:
        self.recorder = weakref.ref(recorder, forget)
        self.follows = _handle_of(recorder)
        self.arounds: list[Around] = []
        self.thread = threading.get_ident()
        self.tape = tapes.push_new_tape(persistent=False, watch_accessed_variables=False)
        self.recording = True

    def push(self, recorder: Any) -> None:
        """The user's tape records again."""
        if _handle_of(recorder) is not self.follows:  # it was reset, and has forgotten everything
            self.follows = _handle_of(recorder)
            self.arounds.clear()
            self.tape = tapes.push_new_tape(persistent=False, watch_accessed_variables=False)
        elif not self.recording:
            tapes.push_tape(self.tape)
        self.thread = threading.get_ident()
        self.recording = True

    def pop(self) -> None:
        """The user's tape stops recording."""
        if self.recording and self.thread == threading.get_ident():
            self.recording = False
            tapes.pop_tape(self.tape)

    def watch(self, results: list[Any]) -> None:
        """Follow what becomes of these tensors; in any thread."""
        handle = self.tape._tape

        def watching() -> None:
            for result in results:
                pywrap_tfe.TFE_Py_TapeWatch(handle, result)

        _alone(handle, watching)


def _handle_of(recorder: Any) -> Any:
    return getattr(recorder, "_tape", None) or getattr(recorder, "_accumulator", None)


def _name_of(source: Any) -> str:
    return str(source.name).partition(":")[0] if tensors.is_variable(source) else "a tensor"


class _Asked(NamedTuple):
    shadow: _Shadow
    recorder: Any
    verb: str
    connected: bool
    sources: Any
    seen: frozenset[int]


class _Follower:
    """Hears of the user's tapes from the first parallel call inside one of them."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def follow(self, around: Around) -> None:
        """Stand beside the tapes that record around a call, in the thread that calls."""
        tensorflow_tapes.start(self)
        for reference in around.recorders:
            recorder = reference()
            if recorder is None:
                continue
            shadow = self._shadow_of(recorder)
            if shadow is None:
                identity = id(recorder)

                def forget(gone: Any, identity: int = identity) -> None:
                    known = self._shadows.get(identity)
                    if known is not None and known.recorder is gone:
                        del self._shadows[identity]
                        known.pop()

                shadow = self._shadows[identity] = _Shadow(recorder, forget)
            shadow.arounds.append(around)

    def results(self, around: Around, results: list[Any]) -> None:
        """Follow results of that call."""
        for reference in around.recorders:
            recorder = reference()
            shadow = None if recorder is None else self._shadow_of(recorder)
            if shadow is not None:
                shadow.watch(results)

    def undo(self) -> None:
        """Stop to listen."""
        for shadow in list(self._shadows.values()):
            shadow.pop()
        self._shadows.clear()
        tensorflow_tapes.stop(self)

    def _shadow_of(self, recorder: Any) -> _Shadow | None:
        shadow = self._shadows.get(id(recorder))
        return shadow if shadow is not None and shadow.recorder() is recorder else None

    # -- events --------------------------------------------------------------------------------

    def opened(self, tape: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        shadow = self._shadow_of(tape)
        if shadow is not None:
            shadow.push(tape)

    def closing(self, tape: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        shadow = self._shadow_of(tape)
        if shadow is not None:
            shadow.pop()

    def watches(self, tape: Any, watched: Any) -> None:
        """What the user watches is of no interest."""

    def asking(self, tape: Any, verb: str, target: Any, sources: Any) -> Any:
        """See `tensorflow_tapes.Listener`."""
        shadow = self._shadow_of(tape)
        if shadow is None or not shadow.arounds or not tf.executing_eagerly():
            return None
        targets = [one for one in tf.nest.flatten(target) if tensors.is_tensor(one)]
        seen: Iterable[Any] = tape.watched_variables() if isinstance(tape, tf.GradientTape) else ()
        connected = _watched(shadow.tape._tape, targets)
        return _Asked(shadow, tape, verb, connected, sources, frozenset(map(id, seen)))

    def answered(self, asked: _Asked, gradients: Any) -> None:
        """See `tensorflow_tapes.Listener`."""
        found = [
            (around.evidence, *lacking)
            for around in asked.shadow.arounds
            if around.evidence is not None
            and any(lacking := self._lacking(asked, around, gradients))
        ]
        if not found:
            return
        frame = callsite.user_frame()
        names: dict[int, str] = {}
        for _, without, partial in found:
            names.update({**without, **partial})
        if frame is not None:
            names.update(values.names_in(frame, set(names)))
        site = None if frame is None else callsite.site_of(frame)
        for evidence, without, partial in found:
            evidence.confirm(
                site, asked.verb, [names[one] for one in without], [names[one] for one in partial]
            )

    def _lacking(
        self, asked: _Asked, around: Around, gradients: Any
    ) -> tuple[dict[int, str], dict[int, str]]:
        """The sources, by id with their paths, that got no gradient or only a part of it."""
        without: dict[int, str] = {}
        partial: dict[int, str] = {}
        for source, gradient in self._pairs(asked, around, gradients):
            path = around.path_of(source)
            if gradient is not None:
                if path is not None and asked.connected:
                    partial[id(source)] = path
            elif asked.connected and (path is not None or around.tensors):
                # What the tape has seen of it before may have gone into the shipped tensors.
                without[id(source)] = path or _name_of(source)
            elif path is not None and id(source) not in asked.seen | around.tensors.keys():
                without[id(source)] = path  # it was read in the workers only
        return without, partial

    def _pairs(self, asked: _Asked, around: Around, gradients: Any) -> list[tuple[Any, Any]]:
        """The sources and what was given for them."""
        given = tf.nest.flatten(gradients)
        if asked.sources is not None:
            sources = [tensors.variable_of(one) for one in tf.nest.flatten(asked.sources)]
            return list(zip(sources, given, strict=False))
        product = None if any(one is None for one in given) else given
        sources = [
            source
            for reference, _ in [*around.variables.values(), *around.tensors.values()]
            if (source := reference()) is not None
        ]
        return [
            (source, product)
            for source in sources
            if watches(asked.recorder, [source.handle if tensors.is_variable(source) else source])
        ]


_follower = _Follower()


def follow(around: Around) -> None:
    """Follow what becomes of the results of that call, which begins in this thread."""
    try:
        _follower.follow(around)
    except Exception as error:
        fault(error)


def results(around: Around, made: list[Any]) -> None:
    """Follow these results of that call."""
    _follower.results(around, made)


def undo() -> None:
    """Leave TensorFlow as it was."""
    _follower.undo()
