"""What happens to TensorFlow's tapes and variables while something is watched.

What `tape.gradient` returns decides; reads of variables and ways out of the tape are noted, so
that a `None` can be explained. Places and weak references only.
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Protocol

import tensorflow as tf

from pytest_gradguard.gradients.clock import now
from pytest_gradguard.gradients.flow import Chain
from pytest_gradguard.runtime import callsite
from pytest_gradguard.runtime.callsite import Site


class Listener(Protocol):
    """A watch of TensorFlow variables."""

    def gradients(self, tape: TapeNotes, sources: list[Any], gradients: list[Any]) -> None:
        """Hear what a tape has returned for its sources."""

    def was_traced(self, graph: Any) -> None:
        """Hear that a function was traced just now: what its tapes returned was heard."""

    def ran_traced(self, graph: Any) -> None:
        """Hear that a function ran which was traced before."""


@dataclass
class TapeNotes:
    """One use of a tape's `gradient`."""

    site: Site | None
    chain: Chain
    thread: int
    automatic: bool
    watched: frozenset[int]
    threads: bool
    last: int


@dataclass
class Read:
    """A variable was read: in which thread, and was a tape recording there."""

    site: Site | None
    thread: int
    recording: bool
    elsewhere: bool
    when: int


@dataclass
class Exit:
    """A value was taken out of the tapes at one place."""

    how: str
    site: Site | None
    chain: Chain
    first: int
    last: int = 0
    seen: set[int] = field(default_factory=set)


class Log:
    """Everything noted since the first open watch began."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.calls: list[TapeNotes] = []
        self.reads: dict[tuple[int, int, bool], Read] = {}
        self.exits: dict[tuple[str, CodeType, int], Exit] = {}
        self.open: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._told: dict[int, set[int]] = {}
        self._threads = False

    # -- tapes ---------------------------------------------------------------------------------

    def tape_opened(self, tape: Any) -> None:
        """A tape records in this thread from now on."""
        if id(tape) not in self.open:
            self._told.pop(id(tape), None)
        self.open[id(tape)] = (weakref.ref(tape), threading.get_ident())

    def tape_watches(self, tape: Any, watched: Any) -> None:
        """A tape was told to watch tensors or variables."""
        told = self._told.setdefault(id(tape), set())
        told.update(id(variable_of(one)) for one in tf.nest.flatten(watched))

    def tape_closed(self, tape: Any) -> None:
        """A tape has stopped to record."""
        self.open.pop(id(tape), None)

    def recording(self) -> tuple[list[Any], bool]:
        """The tapes that record in this thread, and whether one does in another thread."""
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

    def asked(self, tape: Any) -> TapeNotes:
        """What a tape is when its gradients are asked for."""
        return TapeNotes(
            site=_user_site(),
            chain=callsite.user_chain(),
            thread=threading.get_ident(),
            automatic=bool(getattr(tape, "_watch_accessed_variables", True)),
            watched=self._watched_by(tape),
            threads=self._threads or bool(_pools()),
            last=now(),
        )

    def answered(self, notes: TapeNotes, sources: Any, gradients: Any) -> None:
        """Tell the watches what came of it."""
        self.calls.append(notes)
        if len(self.calls) > 1000:
            del self.calls[:500]
        flat = [variable_of(source) for source in tf.nest.flatten(sources)]
        results = tf.nest.flatten(gradients)
        for listener in list(self.listeners):
            listener.gradients(notes, flat, results)

    def thread_started(self) -> None:
        """A thread begins, perhaps while a tape records in the thread that starts it."""
        if self.open:
            self._threads = True

    # -- variables and values ------------------------------------------------------------------

    def read(self, variable: Any) -> None:
        """A variable is read."""
        mine, others = self.recording()
        key = (id(variable), threading.get_ident(), bool(mine))
        known = self.reads.get(key)
        if known is None:
            known = Read(_user_site(), key[1], bool(mine), others, now())
            self.reads[key] = known
        known.when = now()
        known.elsewhere = known.elsewhere or others

    def left(self, how: str) -> None:
        """A value leaves the tapes here: what they have seen so far may lie behind it."""
        frame = callsite.user_frame()
        if frame is None:
            return
        mine, _ = self.recording()
        if not mine:
            return
        key = (how, frame.f_code, frame.f_lasti)
        known = self.exits.get(key)
        if known is None:
            known = self.exits.setdefault(
                key, Exit(how, _written(callsite.site_of(frame)), callsite.user_chain(), now())
            )
        known.last = now()
        for tape in mine:
            known.seen.update(self._watched_by(tape))

    def _watched_by(self, tape: Any) -> frozenset[int]:
        watched = {id(variable) for variable in tape.watched_variables()}
        return frozenset(watched | self._told.get(id(tape), set()))


def _user_site() -> Site | None:
    site = callsite.user_site()
    return None if site is None else _written(site)


def _written(site: Site) -> Site:
    """The place in the user's file, where AutoGraph runs a copy that it generated from it."""
    try:
        from tensorflow.python.util import tf_stack

        mapper = tf_stack._source_mapper_stacks[tf_stack._get_thread_key()][-1]
        known = mapper.get_effective_source_map().get((site.path, site.line))
    except (ImportError, AttributeError, LookupError):  # TensorFlow's own affairs: may change
        return site
    if known is None:
        return site
    path, line, function = known
    # The columns of the copy would be wrong: no instruction, no columns.
    return replace(site, path=path, line=line, function=function, instruction=-1)


def _pools() -> Any:
    """The threads of executors, which wait for work from any other thread."""
    module: Any = sys.modules.get("concurrent.futures.thread")
    return () if module is None else getattr(module, "_threads_queues", ())


def variable_of(source: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; anything else as it is."""
    keras = sys.modules.get("keras")
    kind = getattr(keras, "Variable", None)
    if kind is not None and isinstance(source, kind):
        return getattr(source, "_value", None)
    return source


log: Log | None = None
