"""Watches TensorFlow variables and Keras models, judged by the results of tapes."""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import tensorflow as tf

from pytest_gradguard.gradients import reasons, targets, tensorflow_patches, watched
from pytest_gradguard.gradients.flow import reaches
from pytest_gradguard.gradients.reported import reported
from pytest_gradguard.gradients.tensorflow_log import Log, TapeNotes, recorder
from pytest_gradguard.runtime.frameworks.tensorflow.tensors import variable_of
from pytest_gradguard.runtime.kernel import losses
from pytest_gradguard.runtime.pitfalls.tapes import gg105

_CHECK_NUMERICS = "tf.debugging.enable_check_numerics()"


class Entry(watched.Entry):
    """One watched variable.

    Attributes:
        range: the least and the largest value of the last gradient.
        unread: the last gradient came inside a traced function, where it has no values.
    """

    def __init__(self, name: str, outer: Any, inner: Any) -> None:
        super().__init__(name)
        self.outer = weakref.ref(outer)
        self.ref = weakref.ref(inner)
        self.identity = id(inner)
        self.trainable = bool(getattr(outer, "trainable", True))
        dtype = tf.as_dtype(inner.dtype)
        self.differentiable = dtype.is_floating or dtype.is_complex
        self.description = {
            "framework": "tensorflow",
            "type": type(inner).__name__,
            "shape": [None if size is None else int(size) for size in inner.shape],
            "dtype": dtype.name,
            "device": str(getattr(inner, "device", "") or ""),
        }
        self.is_variable = isinstance(inner, tf.Variable)
        self.asked: list[TapeNotes] = []
        self.range: tuple[Any, Any] | None = None
        self.unread = False


class TensorFlowWatch(watched.FrameworkWatch[Entry, Log]):
    """The TensorFlow part of one watch."""

    def __init__(self, items: list[targets.Item], *, check_values: bool) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others: tuple[TapeNotes, Counter[tuple[int | None, ...]]] | None = None
        super().__init__(items, check_values=check_values)

    def _add(self, name: str, outer: Any) -> None:
        inner = variable_of(outer)
        if inner is None:  # a Keras variable that is not built yet
            return
        known = self._entries.get(id(inner))
        if known is not None and known.ref() is inner:
            known.trainable = bool(getattr(outer, "trainable", True))
            return
        while name in self._by_name:
            name += "'"
        self._entries[id(inner)] = self._by_name[name] = Entry(name, outer, inner)

    def _look_for_new(self) -> None:
        for prefix, model in self._live_owners():
            for name, variable in _variables_of(model):
                self._add(targets.join(prefix, name), variable)

    # -- what happens --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        self.log = tensorflow_patches.start(self)

    def stop(self) -> None:
        """Check a last time, and stop recording."""
        if self.log is not None:
            tensorflow_patches.stop(self)
            self.look()

    def look(self) -> None:
        """Find new variables."""
        self._look_for_new()

    def sources(self) -> list[tuple[int, Any]]:
        """By id: the handles of watched variables, and watched tensors."""
        found = [entry.ref() for entry in self._entries.values() if entry.differentiable]
        return [(id(one), getattr(one, "handle", one)) for one in found if one is not None]

    def gradients(self, tape: TapeNotes, sources: list[Any], gradients: list[Any]) -> None:
        """Record the gradients that a tape returned for its sources."""
        self._look_for_new()
        if self._owners and not any(id(source) in self._entries for source in sources):
            variables = [source for source in sources if isinstance(source, tf.Variable)]
            self._others = (tape, Counter(map(_shape_of, variables)))
        for source, gradient in zip(sources, gradients, strict=False):
            entry = self.entry_of(source)
            if entry is None:
                continue
            if gradient is None:
                entry.asked.append(tape)
                continue
            entry.received = True
            entry.arrived = tape.site
            if self._check_values:
                entry.range = _range_of(gradient)
                entry.unread = not tf.executing_eagerly()

    def was_traced(self, graph: Any) -> None:
        """Record that a function was traced while its tapes were observed."""
        self._graphs.add(graph)

    def ran_traced(self, graph: Any) -> None:
        """Record that a function ran that was traced earlier, with unobserved tapes.

        If its graph computes gradients, the watched variables in it count as having received one.
        """
        if graph in self._graphs:
            return
        self._graphs.add(graph)
        if not _takes_gradients(graph):
            return
        self._look_for_new()
        for variable in graph.variables:
            entry = self.entry_of(variable)
            if entry is not None:
                entry.received = entry.unread = True

    # -- the verdict ---------------------------------------------------------------------------

    def verdicts(self, *, finite: bool, nonzero: bool) -> dict[str, reasons.Reason | None]:
        """Why there is no (good) gradient, by name; None if there is one."""
        found = super().verdicts(finite=finite, nonzero=nonzero)
        for prefix, model in self._live_owners():
            if not any(True for _ in _variables_of(model)):
                found[prefix or "model"] = reasons.NotBuilt(None)
        return found

    def unread(self) -> list[str]:
        """Names whose last gradient had no readable values."""
        return [entry.name for entry in self._by_name.values() if entry.unread]

    def _verdict(self, entry: Entry, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
        if entry.received:
            return _value_reason(entry, finite=finite, nonzero=nonzero)
        return self._why(entry)

    def _why(self, entry: Entry) -> reasons.Reason:
        log = self.log or Log()
        if not entry.differentiable:
            return reasons.NotDifferentiable(None, entry.description["dtype"] or "")
        if not entry.trainable and not entry.asked:
            return reasons.NotTrainable(None)
        calls = [call for call in log.calls if call.last > self.began]
        if not calls:
            return reasons.NeverBackward(what="`tape.gradient`")
        if not entry.asked:
            other = self._other_model()
            if other is not None:
                return other
            return reasons.NotAsked(calls[-1].site, "tape.gradient", other=False)
        tape = entry.asked[-1]
        seen = entry.identity in tape.watched
        if entry.identity in tape.hangs and not seen:
            return self._not_watched(entry, tape)
        cut = _at_worker(entry, tape) or self._cut(log, entry, tape)
        if cut is not None:
            return cut
        if entry.identity in tape.hangs:
            if not entry.is_variable and not tape.customs:
                return reasons.NotWatched(tape.site, "`tape.watch` was called after its use")
            return self._not_produced(tape)
        if seen:
            return reasons.NotInGraph(tape.site, 1, loss="target")
        return self._unrecorded(log, entry, tape)

    def _other_model(self) -> reasons.Reason | None:
        """The reason if gradients of another, similar model were requested."""
        if self._others is None or not self._owners or len(self._entries) < 2:
            return None
        entries = self._entries.values()
        if any(entry.received or entry.asked for entry in entries):
            return None
        tape, shapes = self._others
        watched = Counter(_shape_of(entry.ref()) for entry in entries if entry.trainable)
        if watched - shapes:
            return None
        return reasons.OtherParameters(tape.site, tape.site, tape=True)

    def _not_watched(self, entry: Entry, tape: TapeNotes) -> reasons.Reason:
        """The target was computed from it under the tape, which did not watch it."""
        if not entry.is_variable:
            why = "a tape watches variables by itself, not tensors"
        elif not tape.automatic:
            why = "it was made with `watch_accessed_variables=False`"
        elif not entry.trainable:
            why = "a tape watches trainable variables by itself"
        else:
            return reasons.Unknown(None, (), "the target was computed from it under the tape")
        return reasons.NotWatched(tape.site, why)

    def _not_produced(self, tape: TapeNotes) -> reasons.Reason:
        """The target depends on it through operations, one of which gave None."""
        if len(tape.customs) == 1:
            ((name, site),) = tape.customs
            return reasons.NotProduced(site, (name,))
        return reasons.NotProduced(tape.site, tuple(dict(tape.customs)))

    def _cut(self, log: Log, entry: Entry, tape: TapeNotes) -> reasons.Reason | None:
        """Where a value computed from it was taken out of the tape, on the way to the target."""
        judged = [
            (reaches(left.chain, [tape.chain]), left)
            for left in log.exits.values()
            if entry.identity in left.seen and self.began < left.last and left.first < tape.last
        ]
        likely = [left for flows, left in judged if flows] or [
            left for flows, left in judged if flows is None
        ]
        if len({(left.how, left.site and left.site.key) for left in likely}) == 1:
            how = likely[0].how
            return reasons.Cut(likely[0].site, how, tensorflow_patches.instead_of(how))
        if likely:
            places = " or ".join(f"`{left.how}`{reasons.at(left.site)}" for left in likely[:3])
            return reasons.Unknown(None, (), f"it may be cut by {places}")
        return self._inner(log, entry, tape)

    def _inner(self, log: Log, entry: Entry, tape: TapeNotes) -> reasons.Cut | None:
        """Where another tape computed a gradient for the target while this one did not record."""
        for call in log.calls:
            if (
                max(self.began, tape.opened) < call.last < tape.last
                and tape.identity != call.identity
                and tape.identity not in call.around
                and entry.identity in call.watched
                and reaches(call.chain, [tape.chain])
            ):
                return reasons.Cut(
                    call.site,
                    "tape.gradient()",
                    "Ask the inner tape for its gradient inside the `with` block of the outer one.",
                )
        return None

    def _unrecorded(self, log: Log, entry: Entry, tape: TapeNotes) -> reasons.Reason:
        """The reason for a variable that the tape never recorded."""
        if not entry.is_variable:
            return reasons.NotInGraph(tape.site, 1, loss="target")
        reads = [
            read
            for key, read in log.reads.items()
            if key[0] == entry.identity and read.when > self.began
        ]
        other = [read for read in reads if read.thread != tape.thread and not read.recording]
        if other and any(read.in_other_thread for read in other):
            return reasons.OtherThread(other[0].site, tape.site)
        outside = [read for read in reads if read.thread == tape.thread and not read.recording]
        if outside:
            return reasons.OutsideTape(outside[0].site, tape.site)
        if log.read_outside(entry.ref()):
            return reasons.OutsideTape(None, tape.site)
        if tape.threads:  # an operation reads a variable without calling Python
            threads = "other threads ran, and a tape records its own thread only"
            return reasons.Unknown(None, ("recorded by the tape",), threads)
        return reasons.NotInGraph(tape.site, 1, loss="target")


def _shape_of(variable: Any) -> tuple[int | None, ...]:
    return () if variable is None else tuple(variable.shape)


def _at_worker(entry: Entry, tape: TapeNotes) -> reasons.Reason | None:
    """The parallel call whose process workers used it, where no tape records."""
    known = losses.of(entry.ref())
    if known is None or not isinstance(known.evidence, gg105.Evidence):
        return None
    evidence, asked = known.evidence, known.site
    if not (evidence.processes and asked and tape.site and asked.key == tape.site.key):
        return None
    task = evidence.samples[0].task
    return reasons.CutAtWorker(
        evidence.site, evidence.backend, f"`{task.name}`", tape.site, tape=True
    )


def _variables_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The variables of a model that can be trained, including frozen ones, with dotted names."""
    keras: Any = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Layer):
        seen: set[int] = set()
        for layer in model._flatten_layers():
            for variable in layer._trainable_variables:
                if id(variable) not in seen:
                    seen.add(id(variable))
                    path = variable.path.split("/")
                    if len(path) > 1 and path[0] == model.name and not _own(layer, model, path):
                        path = path[1:]
                    yield ".".join(path), variable
        return
    for path, variable in model._flatten(
        predicate=lambda item: isinstance(item, tf.Variable), with_path=True
    ):
        yield ".".join(str(part) for part in path), variable


def _own(layer: Any, model: Any, path: list[str]) -> bool:
    """Whether the first name in `path` is that of `layer`, which has the name of its `model`.

    That is so if the layer was built on its own, not by a call of the model.
    """
    return layer is not model and layer.name == path[0] and layer.name not in path[1:-1]


def _takes_gradients(graph: Any) -> bool:
    """Whether a traced function, or one that it calls, contains a tape's gradient operations."""
    definition = graph.as_graph_def()
    inner = (node for function in definition.library.function for node in function.node_def)
    return any("gradient_tape/" in node.name for node in (*definition.node, *inner))


def _range_of(gradient: Any) -> tuple[Any, Any] | None:
    """The smallest and largest value of an eager gradient."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not tf.executing_eagerly() or not hasattr(values, "numpy") or not values.dtype.is_floating:
        return None
    with tf.init_scope():
        if not int(tf.size(values)):
            return None
        return tf.reduce_min(values), tf.reduce_max(values)


def _value_reason(entry: Entry, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
    kind: type[reasons.NotFinite] = reasons.NotFinite
    known = entry.range
    if entry.unread and finite:
        kind, nonzero = reasons.TrainedToNonFinite, False
        with tf.init_scope():  # outside of the user's tapes and graphs
            variable = entry.ref()
            known = None if variable is None else _range_of(tf.convert_to_tensor(variable))
    if known is None:
        return None
    low, high = (float(bound) for bound in known)
    if finite and not (math.isfinite(low) and math.isfinite(high)):
        nan = math.isnan(low) or math.isnan(high)
        return kind(entry.arrived, "nan" if nan else "inf", _CHECK_NUMERICS)
    if nonzero and low == high == 0:
        return reasons.AllZero(entry.arrived)
    return None


def explain(variable: Any) -> reasons.Reason | None:
    """Why any variable has no (good) gradient, as far as an open watch knows."""
    inner = variable_of(variable)
    for watch in () if recorder.log is None else recorder.log.listeners:
        entry = watch.entry_of(inner)
        if entry is not None:
            return cast("reasons.Reason | None", watch._verdict(entry, finite=True, nonzero=True))
    dtype = tf.as_dtype(variable.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return reasons.NotDifferentiable(None, dtype.name)
    if not getattr(variable, "trainable", True):
        return reasons.NotTrainable(None)
    return reported(inner) or reasons.Unknown(None)
