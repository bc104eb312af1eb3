"""One parallel call: its line, its backend, and the objects that were shipped to it."""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Any

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import Finding
from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.pitfalls.advice import LIBRARYS_POOL
from pytest_gradguard.runtime.kernel import (
    checks,
    collector,
    error_notes,
    messengers,
    probes,
    registry,
)
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.callsite import Site, user_site
from pytest_gradguard.runtime.kernel.collector import Collector, allowed_now
from pytest_gradguard.runtime.kernel.evidence import NOWHERE, Evidence, Object, TransferEvidence
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.tallies import Tally

tokens = itertools.count(1)
_by_token: weakref.WeakValueDictionary[int | str, Call] = weakref.WeakValueDictionary()
"""The live calls; kept when the guard ends, because results may arrive later."""
initial: ByIdentity[Call] = ByIdentity()
"""By spawned worker process: the call that started it, which shipped parameters."""
_SEARCHES = 8
"""For how many batches of one call the paths of objects are searched; all are counted."""


class Call:
    """One parallel call, from its first task to the last reference to its results.

    Attributes:
        token: its number, by which workers name it.
        site: the user's line.
        collector: where its findings go.
        dropped: codes that are not reported of it.
        kind: the kind of its workers, once a batch has left.
        cache: joblib's cache for pickling its batches, which identifies them, once one has left.
        direct: replaces the `_dispatch` of its `Parallel`, if set.
        workers: the processes that its tasks go to, if the integration knows them.
        initializer: the initializer of these, if the integration knows it.
        pool: a weak reference to the pool that keeps the initializer's arguments as `_initargs`.
        sources: earlier calls that shipped objects which its tasks may use.
        asked: the results of the probes' `ask`, by the probe's name.
        asking: the probes that also ask for each batch.
        in_transform: a transform of `torch.func` was active in the calling thread.
        starts: it starts one process for the program.
        in_librarys_pool: a library created the pool, so the program cannot choose how.
        within_autograd: autograd ran the caller, with gradients off: a `forward` or a hook.
        questions: the probes' questions for its kind of workers, once a batch has left.
        remembered: the probes' own data on it, by the probe's name.
        shared: one object for the calls that give single tasks to one pool.
        began: when it began.
        sent: how many bytes of batches were pickled, if its library reports it.
        shipped: weak references to the tensors that went to its workers, and their paths, by id.
        shipped_before: by id, the earlier call that shipped a tensor which its workers already had.
        modules: weak references to modules, by number.
    """

    def __init__(self, collector: Collector) -> None:
        self.token = next(tokens)
        self.site: Site | None = user_site()
        self.collector = collector
        self.dropped = collector.ignore | allowed_now()
        self.kind = registry.UNKNOWN
        self.cache: Any = None
        self.direct: Callable[[Any], Any] | None = None
        self.workers: Callable[[], Iterable[Any]] | None = None
        self.initializer: Any = None
        self.pool: Callable[[], Any] | None = None
        self.sources: Iterable[Call] = ()
        self.ships_gradients = False
        self.shipped: dict[int, tuple[Reference, str]] = {}
        self.shipped_before: dict[int, Call] = {}
        self.modules: dict[int, Reference] = {}
        self.evidence: dict[int, Evidence] = {}
        self.shared: Any = None
        self.asked: dict[str, Any] = {}
        self.asking: list[tuple[checks.Probe, Callable[[Call, Any], Any]]] = []
        self.remembered: dict[str, Any] = {}
        self.in_transform = False
        self.in_librarys_pool = False
        self.within_autograd = False
        self.starts = False
        self.questions: probes.Questions | None = None
        self.began = perf_counter()
        self.sent = 0
        self._tally: Tally | None = None
        self._searches = _SEARCHES
        _by_token[self.token] = self
        probes.ask(self)

    def announce(self, /, *_: Any, **__: Any) -> None:
        """Announce what was found in it; also as the `after` of what observes its function."""
        collector.announce(self.collector, self.evidence.values())

    @property
    def backend(self) -> str:
        """The name of its workers in findings."""
        return self.kind.name

    def case(self, code: str) -> str:
        """The case of pitfall `code` whose advice fits its workers."""
        if self.in_librarys_pool and LIBRARYS_POOL in pitfalls.get(code).cases:
            return LIBRARYS_POOL
        return self.kind.library

    @property
    def family(self) -> Any:
        """Equal for calls that give single tasks to one pool; else the call itself."""
        return self.shared or self

    def count(self, *, tasks: int = 0, size: int = 0, seconds: float = 0) -> None:
        """Count work that it has sent to its workers."""
        tally = self._tally
        if tally is None:
            if self.site is None or self.kind is registry.UNKNOWN:
                return
            tally = self._tally = self.collector.tally(self.site, self.kind.name)
            tally.calls += 1
        tally.add(tasks=tasks, size=size, seconds=seconds)

    def remember_shipped(self, tensor: Any, path: str) -> None:
        """Remember, weakly, that `tensor` requires grad and goes to a worker of this call."""
        if id(tensor) not in self.shipped:
            self.shipped[id(tensor)] = (refer(tensor), path)

    def use(self, before: Call) -> None:
        """Treat the tensors that an earlier call shipped as shipped to this one, too."""
        self.shipped.update({number: (one, "") for number, (one, _) in before.shipped.items()})
        self.shipped_before.update(dict.fromkeys(before.shipped, before))
        self.ships_gradients = self.ships_gradients or before.ships_gradients

    def number_of(self, module: Any) -> int:
        """Remember, weakly, that `module` goes to a worker of this call, and return its number."""
        number = id(module)
        known = self.modules.get(number)
        if known is None or known() is not module:
            self.modules[number] = refer(module)
        return number

    def module_of(self, number: int) -> Any:
        """The module with that number, or None if it no longer exists."""
        known = self.modules.get(number)
        return None if known is None else known()

    def may_search(self) -> bool:
        """Whether this call may be searched once more; searches are slow."""
        self._searches -= 1
        return self._searches >= 0

    def answer(self, count: int) -> None:
        """Count tensors whose gradients its workers have returned."""
        for evidence in list(self.evidence.values()):
            if isinstance(evidence, TransferEvidence):
                evidence.answered += count

    def note(self, evidence: Evidence) -> None:
        """Remember that `evidence` is of this call."""
        self.evidence[id(evidence)] = evidence

    def name_of(self, path: str) -> str:
        """The name of an object of its tasks that the program does not name."""
        for evidence in list(self.evidence.values()):
            if (
                isinstance(evidence, TransferEvidence)
                and (name := evidence.name_of(path)) is not None
            ):
                return name
        return f"`{path}` of the call" if path else ""

    def explains(self, loss: Evidence) -> None:
        """Record that the objects which this call transferred explain the lost gradient `loss`."""
        for evidence in list(self.evidence.values()):
            if isinstance(evidence, TransferEvidence):
                evidence.explains(loss)


def by_token(token: int | str) -> Call | None:
    """The call with that token in this process, while it is referenced."""
    return _by_token.get(token)


def known_as(call: Call, token: str) -> None:
    """Let `token` name `call`, too, for workers that know it by that."""
    _by_token[token] = call


def note_crossed(token: int, code: str, note: Object) -> None:
    """Count an object in a result that a worker of that call pickled."""
    call = by_token(token)
    if call is None or code in call.dropped:
        return
    evidence: TransferEvidence = checks.load(code).Evidence.of(call, about=note.plain)
    evidence.add(note, note.plain)


def placed(call: Call, finding: Finding) -> Finding:
    """A finding from a worker of `call`; at the call's line if it has no user line.

    That is so if the task is a library's function, such as one that `joblib.Memory` caches.
    """
    if finding.location != NOWHERE or call.site is None:
        return finding
    return replace(finding, location=call.site.location())


when_begun: list[Callable[[Call], object]] = []
"""Called with each call that begins."""


def begin() -> Call | None:
    """The record of a parallel call that begins, or None if no collector is active."""
    try:
        home = collector.innermost()
        if home is None:
            return None
        call = Call(home)
        for listener in when_begun:
            listener(call)
        return call
    except Exception as error:
        fault(error)
        return None


UNPICKLED = "unpickled"
"""A call's key for the text on an object that could not be pickled."""


def failed(call: Call, error: BaseException) -> None:
    """Announce the findings of a call that ends with `error`, as the program raised it."""
    messengers.forget(error)
    if UNPICKLED in call.remembered and isinstance(error, pickle.PicklingError):
        error_notes.add(error, call.remembered[UNPICKLED])  # loky's error, in place of the first
    try:
        call.announce()
    except (GradGuardError, GradGuardWarning):
        pass  # the program's own error comes first
