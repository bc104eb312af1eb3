"""The guard's state in a worker process, and the way results go back.

Workers import this module by name, so it stays light, and its functions keep their signatures.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import (
    checks,
    collector,
    frameworks,
    locate,
    messengers,
    probes,
    shipped_modules,
    simulated_devices,
    watching,
)
from pytest_gradguard.runtime.kernel.collector import here
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.framework import Appends, Framework
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.kernel.transfer import bracketed
from pytest_gradguard.runtime.kernel.travelling import PLAIN

_NOTES = 5
"""How many tensors on a GPU among the results of a batch carry a note."""


def nothing_in(results: Any) -> bool:
    """Whether a list of results needs no inspection."""
    if type(results) is list and PLAIN.issuperset(map(type, results)):
        return True
    return not frameworks.loaded()


cuda_was_up = bool(getattr(sys.modules.get("torch.cuda"), "_initialized", False))
"""In a spawned worker: an initializer has initialised CUDA before any task arrived."""
ready = False
"""The parallel calls that tasks make here are watched."""
_getting_ready = Lock()


def watch_nested_calls() -> None:
    """Guard the parallel calls that tasks make, and their caches; once in a worker process."""
    global ready
    if ready:
        return
    with _getting_ready:  # a worker of dask's runs tasks in several threads
        if not ready:
            watching.start_in_worker()
            ready = True


def take_findings() -> list[Finding]:
    """Return the findings of tasks in this worker since the last call."""
    if here.inside.empty:
        return []
    try:
        found = here.inside.findings
    except Exception as error:
        fault(error)
        found = []
    here.inside = collector.Collector()
    return found


def settle() -> None:
    """Let small batches of joblib skip inspection while nothing new is noticed."""
    here.quiet = True  # first: a thread of the task may notice something at this moment
    if collector.stack or probes.active or not (here.inside.empty and ready):
        here.quiet = False


def send_with(error: BaseException, token: int, notes: probes.Notes) -> None:
    """Attach the probes' notes, and findings, to the error of a task."""
    found = take_findings()
    if found or notes:
        messengers.add(error, Messenger(token, found, notes))


class Messenger:
    """Findings and notes on their way to the parent, which handles them at unpickling."""

    def __init__(self, token: int, found: list[Finding], notes: probes.Notes) -> None:
        self._sent: tuple[Any, ...] = (token, None, found, notes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (receive, self._sent)


class Outbox:
    """The results of a batch on their way back; unpickled, it is the plain list of them."""

    def __init__(
        self, token: int, results: Any, items: Any, found: list[Finding], notes: probes.Notes
    ) -> None:
        self._token = token
        self._results = results
        self._items = items
        self._found = found
        self._notes = notes
        frameworks.watch_reductions()  # a standard pickler copies its table before it begins

    def __repr__(self) -> str:  # errors quote results that cannot be pickled
        return repr(self._results)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return self._reduced()
        except Exception as error:
            fault(error)
            return operator.getitem, ((self._contents(),), 0)

    def _contents(self) -> Any:
        return self._results

    def _reduced(self) -> tuple[Any, ...]:
        transfer = Return(self._token, self._results, self._items)
        said = (self._found, self._notes) if self._notes else (self._found,)
        return bracketed(transfer, receive, (self._token, self._results, *said))


class Return:
    """Records the objects with gradients among the results, in the worker.

    Attributes:
        results: the results.
        items: their tasks.
    """

    def __init__(self, token: int, results: Any, items: Any) -> None:
        self._token = token
        self.results = results
        self.items = items
        self._found: dict[tuple[int, bool], dict[int, str]] = {}
        self._on_gpu = 0
        self._noted = 0
        self.parameters: Appends = deque(maxlen=0)  # they are leaves: no graph to lose
        self.inside: set[int] = set()

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """A parameter is a leaf: it has no graph to lose."""

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Attach a note to a tensor that has history."""
        history = framework.history(tensor)
        if history is None or not isinstance(reduction, tuple):
            return reduction
        self._noted += 1
        more: tuple[Any, ...] = ()
        if self._noted <= _NOTES:
            more = checks.load(checks.crossing("result")).leaf_provenance(history, framework)
        name = type(history).__name__
        return self._with_note("result", tensor, name, reduction, framework, *more)

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Attach a note to an optimizer that loses its state."""
        return self._with_note("optimizer", optimizer, None, reduction, framework)

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Attach a note to the first few tensors on a GPU."""
        self._on_gpu += 1
        if self._on_gpu > _NOTES or not isinstance(reduction, tuple):
            return reduction
        return self._with_note("gpu", tensor, None, reduction, framework)

    def _with_note(
        self,
        kind: str,
        item: Any,
        history: str | None,
        reduction: tuple[Any, ...],
        framework: Framework,
        *more: Any,
    ) -> tuple[Any, ...]:
        """The `reduction` of `item`, with a note for the check that counts its kind."""
        rebuild, arguments, *rest = reduction
        note = self._note(item, history, framework)
        return (
            rebuild_noted,
            (self._token, checks.crossing(kind), note, rebuild, arguments, *more),
            *rest,
        )

    def differentiated(self, tensor: Any, reduction: Any) -> Any:
        """Ignored: tangents belong to the process that made them, and are not expected back."""
        return reduction

    def module(self, module: Any, reduction: Any) -> Any:
        """Attach its origin to a module that came with a task, or to a part of one."""
        if not isinstance(reduction, tuple):
            return reduction
        origin = shipped_modules.origin_of(module)
        if origin is None:
            return reduction
        task = task_of(self.items[self._index_of(module)][0])
        return shipped_modules.returned(self._token, *origin, task, reduction)

    def ended(self) -> None:
        """End a simulation: the results are pickled, with their notes."""
        end_simulation()

    def _note(self, item: Any, history: str | None, framework: Framework) -> Object:
        path, plain = self._locate(item, framework)
        index, _, path = path.partition("|")
        return Object(
            path=path,
            task=task_of(*self.items[int(index)]),
            description=framework.describe(item),
            history=history,
            plain=plain,
        )

    def _index_of(self, item: Any) -> int:
        """The index of the result that holds `item`."""
        if len(self.items) == 1:
            return 0
        roots = [(str(index), (result,)) for index, result in enumerate(self.results)]
        paths = locate.find(roots, lambda one: one is item)
        return int(paths.get(id(item), "0").partition("[")[0])

    def _locate(self, item: Any, framework: Framework) -> tuple[str, bool]:
        item, rest = framework.met(item)
        for deep in (False, True):
            found = self._found.get((id(framework), deep))
            if found is None:
                roots = [(f"{index}|result", result) for index, result in enumerate(self.results)]
                found = self._found[id(framework), deep] = framework.find(roots, deep=deep)
            if id(item) in found:
                return found[id(item)] + rest, not deep
        return "0|result", False


def receive(
    token: int, results: Any, found: list[Finding], notes: probes.Notes | None = None
) -> Any:
    """Handle the results of a batch in the parent; called by unpickling."""
    attempt(shipped_modules.settle)
    if found or notes:
        attempt(_deliver, token, found, notes or [])
    return results


def _deliver(token: int, found: list[Finding], notes: probes.Notes) -> None:
    from pytest_gradguard.runtime.kernel import calls

    call = calls.by_token(token)
    if call is not None:
        for finding in found:
            call.collector.add(calls.placed(call, finding))
        probes.deliver(call, notes)


def rebuild_noted(
    token: int,
    code: str,
    note: Object,
    rebuild: Callable[..., Any],
    arguments: tuple[Any, ...],
    *more: Any,
) -> Any:
    """Rebuild, in the parent, an object that a worker has noted; called by unpickling.

    Args:
        token: the call.
        code: the check that it is noted for.
        note: its description in the worker.
        rebuild, arguments: how it is rebuilt.
        more: the check's own data.
    """
    on_rebuilt = attempt(_find_listener, token, code, note)
    item = rebuild(*arguments)
    if on_rebuilt is not None:
        attempt(on_rebuilt, token, note, item, *more)
    return item


def _find_listener(token: int, code: str, note: Object) -> Callable[..., Any] | None:
    """The `on_rebuilt` of the check of `code`; a check without one counts the object now."""
    on_rebuilt: Callable[..., Any] | None = getattr(checks.load(code), "on_rebuilt", None)
    if on_rebuilt is None:
        from pytest_gradguard.runtime.kernel import calls

        calls.note_crossed(token, code, note)
    return on_rebuilt


def end_simulation() -> None:
    """End the simulated GPUs that came with the tasks, if any."""
    if simulated_devices.current is not None:
        try:
            simulated_devices.current.depart()
        except Exception as error:
            fault(error)
