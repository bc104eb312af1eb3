"""The log of TensorFlow: gradients of tapes, reads of variables, values taken out of tapes.

It holds only call sites and weak references; `tensorflow_patches` writes it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, Protocol

import tensorflow as tf

from pytest_gradguard.gradients import recording
from pytest_gradguard.gradients.flow import Chain
from pytest_gradguard.gradients.recording import Record, Recorder, now
from pytest_gradguard.runtime.frameworks.tensorflow.tensors import variable_of
from pytest_gradguard.runtime.kernel import callsite, transfer
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.faults import freed
from pytest_gradguard.runtime.pitfalls.tapes.own import OwnTape
from pytest_gradguard.runtime.pitfalls.tapes.reads import Reads

_EXACTLY = 3
"""Events of one call site whose sources are computed; later ones reuse the answer."""


def _in_custom_gradient(frame: FrameType | None) -> bool:
    """Whether the forward pass of a custom gradient runs, which no tape differentiates."""
    module: Any = sys.modules.get("tensorflow.python.ops.custom_gradient")
    forward = getattr(module, "_eager_mode_decorator", None)
    while frame is not None and forward is not None:
        if frame.f_code is forward.__code__:
            return True
        frame = frame.f_back
    return False


class Listener(Protocol):
    """A watch of TensorFlow variables."""

    def sources(self) -> list[tuple[int, Any]]:
        """By id: the handles of watched variables, and watched tensors."""

    def gradients(self, tape: TapeNotes, sources: list[Any], gradients: list[Any]) -> None:
        """Receive the gradients that a tape returned for its sources."""

    def was_traced(self, graph: Any) -> None:
        """Called after a function was traced while its tapes were observed."""

    def ran_traced(self, graph: Any) -> None:
        """Called after a function ran that was traced before."""


@dataclass
class TapeNotes:
    """One call of a tape's `gradient`.

    Attributes:
        automatic: the tape watches the variables that are read.
        watched: ids of the variables and tensors that it watches.
        threads: other threads ran meanwhile.
        targets: the differentiated tensors; empty after the call.
        hangs: ids of the sources without a gradient from which the target was computed through
            operations that have gradients.
        customs: the program's custom gradients, and where they were used.
        identity, opened: the tape's id, and the event at which it began to record.
        around: ids of the tapes that recorded in this thread during the call.
    """

    site: Site | None
    chain: Chain
    thread: int
    automatic: bool
    watched: frozenset[int]
    threads: bool
    last: int
    targets: list[Any] = field(default_factory=list, repr=False)
    hangs: frozenset[int] = frozenset()
    customs: tuple[tuple[str, Site | None], ...] = ()
    identity: int = 0
    opened: int = 0
    around: frozenset[int] = frozenset()


@dataclass
class Read:
    """A read of a variable.

    Attributes:
        recording: a tape was recording in that thread.
        in_other_thread: a tape was recording in another thread.
    """

    site: Site | None
    thread: int
    recording: bool
    in_other_thread: bool
    when: int


@dataclass
class Exit(Record):
    """Values taken out of the tapes at one call site.

    Attributes:
        seen: ids of the variables and tensors that would have received a gradient through them.
    """

    how: str = ""
    seen: set[int] = field(default_factory=set)


class _ShadowTape:
    """A tape of the guard alongside one of the program; it watches all watched tensors."""

    def __init__(self, tape: Any, known: dict[int, _ShadowTape], watched: list[Any]) -> None:
        identity = id(tape)
        self._handle: Any = tape._tape
        self._reference = weakref.ref(tape, freed(known.pop, identity, None))
        self.tape = OwnTape(automatic=True)
        self.tape.watch(watched)

    def fits(self, tape: Any) -> bool:
        """Whether it belongs to `tape`, which has not been reset since."""
        now: Any = tape._tape
        return self._reference() is tape and (now is None or now is self._handle)


class _Outside:
    """Trainable variables that one thread reads while no tape records there."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._reads: Reads | None = None
        self._seen: dict[int, weakref.ref[Any]] = {}

    def begin(self) -> None:
        if self._reads is None and self._thread == threading.get_ident():
            self._reads = Reads()

    def end(self) -> None:
        if self._reads is not None and self._thread == threading.get_ident():
            self._seen.update((id(one), weakref.ref(one)) for one in self._reads.end())
            self._reads = None

    def saw(self, variable: Any) -> bool:
        self.end()
        known = self._seen.get(id(variable))
        return known is not None and known() is variable


def _has_gradients(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


class Log(recording.Log):
    """Events of TensorFlow since the first open watch began."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[TapeNotes] = []
        self.reads: dict[tuple[int, int, bool], Read] = {}
        self.exits: dict[tuple[str, CodeType, int], Exit] = {}
        self.open: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._explicitly_watched: dict[int, set[int]] = {}
        self._opened: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._threads = False
        self._shadows: dict[int, _ShadowTape] = {}
        self._answers: dict[Any, tuple[int, frozenset[int]]] = {}
        self._customs: dict[tuple[str, Site | None], None] = {}
        self._outside = _Outside()

    # -- tapes ---------------------------------------------------------------------------------

    def tape_opened(self, tape: Any) -> None:
        """Record that a tape begins to record in this thread."""
        if id(tape) not in self.open:
            self._explicitly_watched.pop(id(tape), None)
        known = self._opened.get(id(tape))
        if known is None or known[0]() is not tape:
            gone = freed(self._opened.pop, id(tape), None)
            self._opened[id(tape)] = (weakref.ref(tape, gone), now())
        self.open[id(tape)] = (weakref.ref(tape), threading.get_ident())
        self._outside.end()
        if tf.executing_eagerly():
            shadow = self._shadow_of(tape)
            if shadow is None:
                watched = [handle for one in self.listeners for _, handle in one.sources()]
                shadow = self._shadows[id(tape)] = _ShadowTape(tape, self._shadows, watched)
            shadow.tape.push()

    def tape_watches(self, tape: Any, watched: Any) -> None:
        """Record a call of `tape.watch`."""
        known = self._explicitly_watched.setdefault(id(tape), set())
        known.update(id(variable_of(one)) for one in tf.nest.flatten(watched))

    def tape_closed(self, tape: Any) -> None:
        """Record that a tape stopped recording."""
        self.open.pop(id(tape), None)
        shadow = self._shadow_of(tape)
        if shadow is not None:
            shadow.tape.pop()
        if not self.recording()[0]:
            self._outside.begin()

    def _shadow_of(self, tape: Any) -> _ShadowTape | None:
        known = self._shadows.get(id(tape))
        return known if known is not None and known.fits(tape) else None

    def _sources(self, shadow: _ShadowTape) -> dict[int, Any]:
        """By id, the variables and tensors that a value may have been computed from."""
        found = {id(one): one.handle for one in shadow.tape.variables()}
        for listener in self.listeners:
            found.update(listener.sources())
        return found

    def begin(self) -> None:
        """Begin to record reads of variables outside all tapes in this thread."""
        if not self.recording()[0]:
            self._outside.begin()

    def end(self) -> None:
        """Remove the guard's tapes."""
        self._outside.end()
        for shadow in self._shadows.values():
            shadow.tape.pop()
        self._shadows.clear()

    def read_outside(self, variable: Any) -> bool:
        """Whether an operation read `variable` while no tape was recording."""
        return self._outside.saw(variable)

    def custom(self, name: str) -> None:
        """Record that a custom gradient of the program was used."""
        if len(self._customs) < 100:
            self._customs.setdefault((name, _user_site()))

    def recording(self) -> tuple[list[Any], bool]:
        """The tapes recording in this thread, and whether another thread has one."""
        mine, others = [], False
        for reference, thread in list(self.open.values()):
            tape = reference()
            if tape is None:
                continue
            if thread == threading.get_ident():
                mine.append(tape)
            else:
                others = True
        return mine, others

    def asked(self, tape: Any, targets: list[Any]) -> TapeNotes:
        """State of a tape as its `gradient` is called."""
        return TapeNotes(
            site=_user_site(),
            chain=callsite.user_chain(),
            thread=threading.get_ident(),
            automatic=bool(getattr(tape, "_watch_accessed_variables", True)),
            watched=self._watched_by(tape),
            threads=self._threads or bool(_pools()),
            last=now(),
            targets=targets,
            customs=tuple(self._customs),
            identity=id(tape),
            opened=self._opened[id(tape)][1] if id(tape) in self._opened else 0,
            around=frozenset(map(id, self.recording()[0])),
        )

    def answered(self, tape: Any, notes: TapeNotes, sources: Any, gradients: Any) -> None:
        """Pass the result of `tape.gradient` to the watches."""
        self.calls.append(notes)
        if len(self.calls) > 1000:
            del self.calls[:500]
        flat = [variable_of(source) for source in tf.nest.flatten(sources)]
        results = tf.nest.flatten(gradients)
        missing = [one for one, gradient in zip(flat, results, strict=False) if gradient is None]
        if missing:
            notes.hangs = self._hanging(tape, notes, missing)
        notes.targets = []
        for listener in list(self.listeners):
            listener.gradients(notes, flat, results)

    def _hanging(self, tape: Any, notes: TapeNotes, missing: list[Any]) -> frozenset[int]:
        """Ids of the `missing` sources from which the targets were computed."""
        times, known = self._answers.get(notes.site and notes.site.key, (0, frozenset()))
        shadow = self._shadow_of(tape)
        targets = notes.targets
        if times >= _EXACTLY or shadow is None or not all(hasattr(t, "numpy") for t in targets):
            return known
        handles = [getattr(one, "handle", one) for one in missing]
        flows = shadow.tape.flows(targets, handles) if shadow.tape.sees(targets) else []
        found = frozenset(id(one) for one, flow in zip(missing, flows, strict=False) if flow)
        self._answers[notes.site and notes.site.key] = (times + 1, found)
        return found

    def thread_started(self) -> None:
        """Record that a thread starts, perhaps while a tape records."""
        if self.open:
            self._threads = True

    # -- variables and values ------------------------------------------------------------------

    def read(self, variable: Any) -> None:
        """Record a read of `variable`."""
        if transfer.active.transfer is not None:
            return  # it is pickled for a worker
        mine, others = self.recording()
        key = (id(variable), threading.get_ident(), bool(mine))
        known = self.reads.get(key)
        if known is None:
            known = Read(_user_site(), key[1], bool(mine), others, now())
            self.reads[key] = known
        known.when = now()
        known.in_other_thread = known.in_other_thread or others

    def left(self, how: str, operand: Any) -> None:
        """Record that `operand` is taken out of the tapes here, by `how`."""
        mine, _ = self.recording()
        frame = callsite.user_frame() if mine else None
        if frame is None or _in_custom_gradient(sys._getframe()):
            return
        key = (how, frame.f_code, frame.f_lasti)
        known = self.exits.get(key)
        variable = variable_of(operand)
        itself = {id(variable)} if isinstance(variable, tf.Variable) else set()
        if type(operand) in (list, tuple):
            inner = [variable_of(one) for one in operand]
            itself = {id(one) for one in inner if isinstance(one, tf.Variable)}
            operand = [one for one in inner if isinstance(one, tf.Tensor)]
        behind = itself | self._behind(operand, mine, known)
        if not behind:
            return
        if known is None:
            site = _written(callsite.site_of(frame))
            known = self.exits.setdefault(key, Exit(site, callsite.user_chain(), how=how))
        known.again()
        known.seen |= behind

    def _behind(self, operand: Any, mine: list[Any], known: Exit | None) -> set[int]:
        """Ids from which `operand` was computed through operations with gradients."""
        found: set[int] = set()
        if isinstance(variable_of(operand), tf.Variable):
            return found
        parts = tf.nest.flatten(operand, expand_composites=True)
        values = [one for one in parts if isinstance(one, tf.Tensor) and _has_gradients(one)]
        for tape in mine:
            shadow = self._shadow_of(tape)
            if shadow is None or not all(hasattr(one, "numpy") for one in values):
                found.update(self._watched_by(tape))  # in a graph nothing can be computed
            elif values and shadow.tape.sees(values):
                if known is not None and known.count >= _EXACTLY:
                    return known.seen
                sources = self._sources(shadow)
                flows = shadow.tape.flows(values, list(sources.values()))
                found.update(one for one, flow in zip(sources, flows, strict=True) if flow)
        return found

    def _watched_by(self, tape: Any) -> frozenset[int]:
        watched = {id(variable) for variable in tape.watched_variables()}
        return frozenset(watched | self._explicitly_watched.get(id(tape), set()))


def _user_site() -> Site | None:
    site = callsite.user_site()
    return None if site is None else _written(site)


def _written(site: Site) -> Site:
    """Map a line of code that AutoGraph generated to the user's file."""
    try:
        from tensorflow.python.util import tf_stack

        mapper = tf_stack._source_mapper_stacks[tf_stack._get_thread_key()][-1]
        known = mapper.get_effective_source_map().get((site.path, site.line))
    except (ImportError, AttributeError, LookupError):  # TensorFlow's internals may change
        return site
    if known is None:
        return site
    path, line, function = known
    # The columns of the copy would be wrong: no instruction, no columns.
    return replace(site, path=path, line=line, function=function, instruction=-1)


def _pools() -> Any:
    """Threads of executors, which may run work of any thread."""
    module: Any = sys.modules.get("concurrent.futures.thread")
    return () if module is None else getattr(module, "_threads_queues", ())


recorder: Recorder[Log] = Recorder(Log)


def noted(note: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a wrapper that records each call of a function of TensorFlow, before it."""
    return recording.noted(lambda: recorder.log, note, before=True)
