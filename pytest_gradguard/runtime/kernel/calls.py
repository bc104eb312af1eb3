"""One parallel call: where it was made, on which backend, and what was shipped to it."""

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
"""By a worker's process that was not forked: the call of its start, which shipped parameters."""
_SEARCHES = 8
"""How many batches of one call are searched for the paths of their objects; all are counted."""


class Call:
    """One parallel call, from its first task to the last mention of its results.

    Attributes:
        token: its number, by which workers name it.
        site: the user's line.
        collector: where its findings go.
        dropped: codes that are not reported of it.
        kind: the kind of its workers, once a batch has left.
        cache: joblib's cache for pickling its batches, by which they are known, once one has left.
        direct: what stands in the place of the `_dispatch` of its `Parallel`, where anything does.
        workers: the processes that its tasks go to, where the integration knows them.
        initializer: what prepares these, where the integration knows it.
        pool: weakly, the pool that keeps what it gives the initializer as `_initargs`.
        sources: earlier calls that shipped what its tasks may use.
        asked: what the probes asked as it began, by the probe's name.
        asking: the probes that ask for each batch, too.
        in_transform: a transform of `torch.func` was active in the calling thread.
        starts: it starts one process of the program's own.
        in_librarys_pool: a library has made the pool; the program cannot say how.
        within_autograd: autograd ran the caller, with gradients off: a `forward` or a hook.
        questions: what they ask for its kind of workers, once a batch has left.
        remembered: what a probe remembers of it, by the probe's name.
        shared: one object for the calls that give single tasks to one pool.
        began: when it began.
        sent: how many bytes of batches were pickled, where its library tells it.
        shipped: weak references to the tensors that went to its workers, and their paths, by id.
        shipped_before: by id, the earlier call that shipped those which its workers had already.
        modules: weak references to modules, by their numbers.
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
        """What the findings call its workers."""
        return self.kind.name

    def case(self, code: str) -> str:
        """The case of the advice of pitfall `code` that fits its workers."""
        if self.in_librarys_pool and LIBRARYS_POOL in pitfalls.get(code).cases:
            return LIBRARYS_POOL
        return self.kind.library

    @property
    def family(self) -> Any:
        """Equal for calls that give single tasks to one pool; else the call itself."""
        return self.shared or self

    def count(self, *, tasks: int = 0, size: int = 0, seconds: float = 0) -> None:
        """Count what it has handed to its workers."""
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
        """Take what an earlier call shipped for shipped to this one, whose tasks use it."""
        self.shipped.update({number: (one, "") for number, (one, _) in before.shipped.items()})
        self.shipped_before.update(dict.fromkeys(before.shipped, before))
        self.ships_gradients = self.ships_gradients or before.ships_gradients

    def number_of(self, module: Any) -> int:
        """Remember, weakly, that `module` goes to a worker of this call, and give its number."""
        number = id(module)
        known = self.modules.get(number)
        if known is None or known() is not module:
            self.modules[number] = refer(module)
        return number

    def module_of(self, number: int) -> Any:
        """The module with that number, or None where it is no more."""
        known = self.modules.get(number)
        return None if known is None else known()

    def may_search(self) -> bool:
        """Whether the slow road may be taken once more for this call."""
        self._searches -= 1
        return self._searches >= 0

    def answer(self, count: int) -> None:
        """Count the tensors of which its workers have returned the gradient."""
        for evidence in list(self.evidence.values()):
            if isinstance(evidence, TransferEvidence):
                evidence.answered += count

    def note(self, evidence: Evidence) -> None:
        """Remember that `evidence` comes of this call."""
        self.evidence[id(evidence)] = evidence

    def name_of(self, path: str) -> str:
        """What to call an object of its tasks that the program has no name for."""
        for evidence in list(self.evidence.values()):
            if (
                isinstance(evidence, TransferEvidence)
                and (name := evidence.name_of(path)) is not None
            ):
                return name
        return f"`{path}` of the call" if path else ""

    def explains(self, loss: Evidence) -> None:
        """What crossed in this call explains the loss of a gradient, of which there is `loss`."""
        for evidence in list(self.evidence.values()):
            if isinstance(evidence, TransferEvidence):
                evidence.explains(loss)


def by_token(token: int | str) -> Call | None:
    """The call with that token in this process, while anything refers to it."""
    return _by_token.get(token)


def known_as(call: Call, token: str) -> None:
    """Let `token` name `call`, too: workers know it by that."""
    _by_token[token] = call


def note_crossed(token: int, code: str, note: Object) -> None:
    """Count an object that one pickling met on its way back from a worker of that call."""
    call = by_token(token)
    if call is None or code in call.dropped:
        return
    evidence: TransferEvidence = checks.load(code).Evidence.of(call, about=note.plain)
    evidence.add(note, note.plain)


def placed(call: Call, finding: Finding) -> Finding:
    """A finding from a worker of `call`; at the call's line, where nothing of the user's ran there.

    So it is where a task is a function of a library's, such as one that `joblib.Memory` caches.
    """
    if finding.location != NOWHERE or call.site is None:
        return finding
    return replace(finding, location=call.site.location())


when_begun: list[Callable[[Call], object]] = []
"""What is called with each call that begins."""


def begin() -> Call | None:
    """The record of the parallel call that begins now, or None where nobody listens."""
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
"""Under this name a call remembers what of it could not be pickled, in words."""


def failed(call: Call, error: BaseException) -> None:
    """Announce what was found in a call that ends with `error`, as the program raised it."""
    messengers.forget(error)
    if UNPICKLED in call.remembered and isinstance(error, pickle.PicklingError):
        error_notes.add(error, call.remembered[UNPICKLED])  # of loky's, which stands for the first
    try:
        call.announce()
    except (GradGuardError, GradGuardWarning):
        pass  # the program's own error comes first
