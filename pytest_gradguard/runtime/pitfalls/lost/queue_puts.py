"""Items that the program puts on a queue of `multiprocessing` and that torch refuses to pickle.

Such a queue pickles in a thread of its own, after `put` has returned: the item is lost with only a
traceback, or without one if the process is ending. `put` only records the line, for the pickling
that fails (`pickling_errors`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any, ClassVar, NamedTuple

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding, Severity, TraceStep
from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.kernel import callsite, collector, evidence, locate
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.collector import Scope
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.quoting import QUEUE_PUT, Quoted, quoted
from pytest_gradguard.runtime.kernel.registry import PROCESSES
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.kernel.travelling import PLAIN

_TORCH = "torch.nn.parameter"
_LEAVES = "pytest_gradguard.runtime.pitfalls.lost.pickled_leaves"  # it needs torch
_PASSED = ("multiprocessing.", "pytest_gradguard.")
"""Modules between the program and a queue: `put_nowait`, and other wrappers of `put`."""
_MOST = 1_024
"""How many items at least are recorded: a queue's thread is seldom that far behind."""
_SEARCHED = 500
"""How many objects of a process are searched."""
_MOST_REPORTED = 32
"""How many findings a process reports for one line."""


class Put(NamedTuple):
    """One item that the program put on a queue.

    Attributes:
        path, code, instruction: the place of the call.
        scopes: the scopes that were open there.
    """

    path: str
    code: CodeType
    instruction: int
    scopes: list[Scope]

    @property
    def site(self) -> Site:
        """The line."""
        return callsite.site_at(self.path, self.code, self.instruction)

    def called(self, path: str) -> Quoted:
        """The program's name for the object at `path` in the item."""
        return quoted(self.site, f"args[0]{path}", None, QUEUE_PUT)


class _State(GuardState):
    """The items that were put.

    Attributes:
        puts, earlier: the last ones by id, which may be reused by now.
        reported: how many findings were reported, by line.
    """

    def __init__(self) -> None:
        self.puts: dict[int, Put] = {}
        self.earlier: dict[int, Put] = {}
        self.reported: dict[object, int] = {}


_state = dropped_at_end(_State())
reporters: list[Callable[[list[Finding]], object]] = []
"""In a process that the program has started: reports findings at once."""


def patches(module: ModuleType) -> list[Patch]:
    """Watch the queues of `multiprocessing.queues` that pickle in a thread of their own."""
    return [observe(kind, "put", before=_puts) for kind in (module.Queue, module.JoinableQueue)]


def may_receive(package: str, process: Any) -> bool:
    """Whether tensors may come to `process`, of `package`, while it runs.

    They come through a queue, a connection or a manager in its arguments or attributes, or from a
    file, if the program has pickled leaves itself.
    """
    leaves: Any = sys.modules.get(_LEAVES)
    if leaves is not None and leaves.any_pickled():
        return True
    carriers = {f"{package}.{name}" for name in ("queues", "connection", "managers")}

    def carries(item: Any) -> bool:
        return any(base.__module__ in carriers for base in type(item).__mro__)

    own = {name: value for name, value in vars(process).items() if name != "run"}  # that is ours
    return bool(locate.find([("", own)], carries, limit=_SEARCHED))


def _puts(queue: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
    if type(obj) in PLAIN or _TORCH not in sys.modules:
        return
    if type(obj) is tuple and PLAIN.issuperset(map(type, obj)):
        return
    frame: Any = caller()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PASSED):
        frame = frame.f_back
    if frame is not None and callsite.is_users(frame):
        if len(_state.puts) >= _MOST:
            _state.puts, _state.earlier = {}, _state.puts
        scopes = collector.around()
        _state.puts[id(obj)] = Put(callsite.file_of(frame), frame.f_code, frame.f_lasti, scopes)


def put_of(items: Iterable[Any]) -> Put | None:
    """The put of one of `items`, which a queue is pickling; None if unknown."""
    known = (_state.puts.get(id(item)) or _state.earlier.get(id(item)) for item in items)
    return next(filter(None, known), None)


def refused(put: Put, tensor: Any, path: str) -> None:
    """Report that torch refuses to pickle a tensor, at `path` in an item."""
    kind = Returned if _in_a_worker() else Given
    home, site = collector.innermost(put.scopes), put.site
    if kind.code in collector.allowed_now(put.scopes):
        return
    if reporters:
        _state.reported[site.key] = number = _state.reported.get(site.key, 0) + 1
        finding = kind(site).of_item(put, tensor, path).build()
        if finding is not None and number <= _MOST_REPORTED:
            reporters[0]([finding])
    elif home is not None and kind.code not in home.ignore:
        found = home.evidence((kind.code, site.key, QUEUE_PUT), lambda: kind(site))
        assert isinstance(found, Refused)
        found.of_item(put, tensor, path)
        with suppress(GradGuardError, GradGuardWarning):  # in the queue's own thread
            collector.announce(home, [found])


def _in_a_worker() -> bool:
    module: Any = sys.modules["multiprocessing.process"]
    return module._parent_process is not None


class Refused(evidence.TransferEvidence):
    """Items of one line that are lost because a tensor in them has a graph."""

    root: ClassVar[str]
    severity = Severity.ERROR
    advice = (
        "Put `tensor.detach()` on the queue, or, where the gradient has to come back, use threads "
        "or `pytest_gradguard.parallel.Parallel`."
    )
    name = ""

    def __init__(self, site: Site) -> None:
        super().__init__(site, PROCESSES.name)

    def of_item(self, put: Put, tensor: Any, path: str) -> Refused:
        """Count one more item, whose tensor at `path` was refused."""
        from pytest_gradguard.runtime.frameworks.torch import tensors

        self.name = self.name or put.called(path).name
        assert self.site is not None
        task = Task(self.site.function, self.site.path, self.site.line)
        about: Details = {**tensors.describe(tensor), "refused": "send"}
        history = type(tensors.grad_fn(tensor)).__name__
        self.add(evidence.Object(f"{self.root}{path}", task, about, history, True))
        return self

    def message(self) -> str:
        return (
            f"{self.name} ({self.samples[0].label()}) is put on a queue with its graph: torch "
            "refuses to pickle it, in the queue's own thread, so the item is lost and `get()` "
            "waits in vain."
        )

    def trace(self) -> Sequence[TraceStep]:
        return ()

    def about(self) -> Details:
        return {**super().about(), "subject": self.name}


class Given(Refused):
    """Items that the program itself put (GG101)."""

    code = "GG101"
    root = "args[0]"


class Returned(Refused):
    """Items that a process of the program put (GG102)."""

    code = "GG102"
    root = "result"
