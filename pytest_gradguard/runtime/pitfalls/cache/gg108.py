"""GG108: `joblib.Memory` stores a result by pickling it, which drops its graph.

The first call returns the live result; a later one, read from the store, a leaf without history.
Results that this process has stored are known. Those of an earlier run are judged by the cached
function: if it creates no leaves itself, a tensor that requires grad had a graph.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Severity
from pytest_gradguard.runtime.kernel import callsite, collector, evidence, frameworks
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.evidence import SAMPLES, Object
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.framework import Appends, Framework
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.tasks import Task, code_of, task_of
from pytest_gradguard.runtime.kernel.transfer import Transfer, active
from pytest_gradguard.runtime.kernel.travelling import PLAIN
from pytest_gradguard.runtime.pitfalls.cache import makes_leaves

CODE = "GG108"
_KEPT = 10_000
_stored: dict[tuple[str, ...], Object] = {}
"""The first tensor with history in each stored item, by the item's key.

Kept for the whole process: a later guard may see returned what an earlier one saw stored.
"""
_LOOKED_AT = 1_000
"""How many objects of an item read from a store are searched."""


def _make() -> list[Patch]:
    memory, store = map(sys.modules.get, ("joblib.memory", "joblib._store_backends"))
    if memory is None or store is None:
        return []
    backend = store.StoreBackendMixin
    return [
        observe(memory.MemorizedFunc, "__call__", before=_calls, after=_called, failed=_leave),
        observe(backend, "dump_item", before=_stores, after=_has_stored, failed=_not_stored),
        observe(backend, "load_item", after=_loaded),
    ]


apply = LatePatches(_make).apply
"""Watch what joblib's caches store and return, if joblib is loaded."""


class _Call:
    """One call of a cached function.

    Attributes:
        function: the cached function.
        keywords: the names of the keyword arguments.
        outer: the call that runs it.
        read: evidence found in results read from a store, with its collector.
    """

    def __init__(self, function: Any, keywords: Iterable[str], outer: _Call | None) -> None:
        self.function = function
        self.keywords = keywords
        self.outer = outer
        self.read: list[tuple[Collector, Evidence]] = []


class _Running(threading.local):
    call: _Call | None = None


_running = _Running()


def _calls(cached: Any, /, *args: Any, **kwargs: Any) -> _Call | None:
    if collector.innermost() is None:
        return None
    _running.call = _Call(getattr(cached, "func", None), kwargs, _running.call)
    return _running.call


def _leave(call: _Call, *_: Any, **__: Any) -> None:
    _running.call = call.outer


def _called(call: _Call, /, *_: Any, **__: Any) -> None:
    _running.call = call.outer
    for home, found in call.read:  # joblib handles errors raised while it reads as its own
        attempt(collector.announce, home, [found])


def _stores(store: Any, call_id: Any, item: Any, *args: Any, **kwargs: Any) -> Storing | None:
    if collector.innermost() is None or not (frameworks.loaded() or _tensorflow()):
        return None
    frameworks.watch_reductions()
    active.transfer = storing = Storing(item, active.transfer)
    return storing


def _not_stored(storing: Storing, *_: Any, **__: Any) -> None:
    active.transfer = storing.outer


def _has_stored(
    storing: Storing, outcome: Any, store: Any, call_id: Any, *_: Any, **__: Any
) -> None:
    active.transfer = storing.outer
    _stored.pop(_key(store, call_id), None)
    # If pickling failed, the item is missing and joblib has already reported that.
    if storing.found and store.contains_item(call_id):
        samples = storing.samples()
        if _note(samples, "stores") and len(_stored) < _KEPT:
            _stored[_key(store, call_id)] = samples[0]


def _tensorflow() -> bool:
    return hasattr(sys.modules.get("tensorflow"), "GradientTape")


def _loaded(item: Any, store: Any, call_id: Any, *args: Any, **kwargs: Any) -> None:
    if collector.innermost() is not None:
        severed = _severed_in(item, _stored.get(_key(store, call_id)))
        if severed is not None:
            _note([severed], "returns")


def _severed_in(item: Any, stored: Object | None) -> Object | None:
    """The first tensor in `item`, read from a store, that had history when it was stored.

    Args:
        item: the result that was read.
        stored: what this process knows of it, if it stored it.
    """
    if stored is not None and not stored.framework.backwards:
        return stored
    if "torch.nn.parameter" not in sys.modules or type(item) in PLAIN:
        return None
    from pytest_gradguard.runtime.frameworks.torch import tensors as torch

    if not torch.expects_gradients():
        return None
    path, tensor = torch.first_leaf("result", item, _LOOKED_AT)
    if tensor is None:
        return None
    if stored is not None:
        return stored
    call = _running.call
    if call is None or makes_leaves.WORD in call.keywords:
        return None
    if makes_leaves.may_make_leaves(call.function):
        return None
    return Object(path, task_of(call.function), torch.describe(tensor), history=None, plain=True)


def _key(store: Any, call_id: Any) -> tuple[str, ...]:
    return (str(store.location), *map(str, call_id))


class Storing:
    """Records the tensors in one result as it is pickled into a store, in place of `outer`."""

    inside = None

    def __init__(self, item: Any, outer: Transfer | None) -> None:
        self._item = item
        self.outer = outer
        self.parameters: Appends = deque(maxlen=0)  # they are leaves: no graph to lose
        self.found: list[tuple[Any, Framework]] = []

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Note a tensor through which a gradient would flow."""
        if framework.recorded(tensor):
            self.found.append((tensor, framework))
        return reduction

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """A parameter is a leaf: it has no graph to lose."""

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Ignored: an optimizer in a store goes to no worker."""
        return reduction

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Ignored: a tensor in a store goes to no worker."""
        return reduction

    def differentiated(self, tensor: Any, reduction: Any) -> Any:
        """Ignored: a tensor in a store goes to no worker."""
        return reduction

    def module(self, module: Any, reduction: Any) -> Any:
        """Ignored: a module in a store goes to no worker."""
        return reduction

    def ended(self) -> None:
        """The result is stored."""

    def samples(self) -> list[Object]:
        """Describe the first few recorded tensors; directly returned ones come first."""
        roots = [("result", self._item)]
        kinds = {id(framework): framework for _, framework in self.found}.values()
        plain = _merged(kind.find(roots, deep=False) for kind in kinds)
        deep = plain
        if any(id(tensor) not in plain for tensor, _ in self.found):
            deep = _merged(kind.find(roots) for kind in kinds)
        function = _cached_function()
        task = Task("a cached function", None, None) if function is None else task_of(function)
        samples = []
        plain_first = sorted(self.found, key=lambda found: id(found[0]) not in plain)
        for tensor, framework in plain_first[:SAMPLES]:
            history = framework.history(tensor)
            samples.append(
                Object(
                    path=plain.get(id(tensor)) or deep.get(id(tensor), "result"),
                    task=task,
                    description=framework.describe(tensor),
                    history=None if history is None else type(history).__name__,
                    plain=id(tensor) in plain,
                )
            )
        return samples


def _merged(found: Iterable[dict[int, str]]) -> dict[int, str]:
    return {identity: path for paths in found for identity, path in paths.items()}


def _cached_function() -> Any:
    """The cached function that joblib stores or loads now, found from joblib's frames."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "joblib.memory":
            function = getattr(frame.f_locals.get("self"), "func", None)
            if function is not None:
                return function
    return None


def _site(home: Any) -> Site | None:
    """The user's line; if a thread calls the cached function directly, its definition.

    None in that case in a worker process: the parent fills in the line of its call.
    """
    site = callsite.user_site()
    if site is not None or home is collector.here.inside:
        return site
    code = code_of(_cached_function())
    if code is None or not callsite.is_user_file(code.co_filename):
        return None
    return callsite.site_at(code.co_filename, code, 0)


def _note(samples: list[Object], verb: str) -> bool:
    """Report `samples`, which a store stores or returns; return whether anybody listens."""
    home = collector.innermost()
    if home is None or CODE in home.ignore | collector.allowed_now():
        return False
    site = _site(home)
    found = home.evidence((CODE, site and site.key), lambda: Evidence(site, "joblib.Memory"))
    assert isinstance(found, Evidence)
    found.add(samples, verb)
    if verb == "returns" and _running.call is not None:
        _running.call.read.append((home, found))
    else:
        collector.announce(home, [found])
    return True


class Evidence(evidence.Evidence):
    """Results with history that one cache stored, or returned without it, at one line."""

    code = CODE

    def __init__(self, site: Site | None, backend: str) -> None:
        super().__init__(site, backend, direction="result")
        self._times = {"stores": 0, "returns": 0}

    def add(self, samples: list[Object], verb: str) -> None:
        """Count one more result that the cache stores or returns at this line."""
        with self._lock:
            self.count += 1
            self._times[verb] += 1
            self.samples = [*self.samples, *samples][:SAMPLES]
            self.severity = None if any(s.plain for s in self.samples) else Severity.INFO
            task = self.samples[0].task
            self.add_step(f"`{task.name}` is cached", task.path, task.line, None)

    def about(self) -> Details:
        first = self.samples[0]
        return {
            **first.description,
            **self.details,
            "object": first.path,
            "history": first.history,
            "function": first.task.name,
            "stored": self._times["stores"],
            "returned": self._times["returns"],
        }

    def message(self) -> str:
        first = self.samples[0]
        name = "the result" if first.path == "result" else f"`{first.path}`"
        what = f"{name} of `{first.task.name}` ({first.label()})"
        tape = first.framework.on_tapes
        graph = "what the tape has recorded of it" if tape else "its graph"
        leaf = "a constant" if tape else "a leaf"
        if self._times["returns"]:
            return (
                f"The cache returns {what} as {leaf}: {graph} was dropped when it was stored, and "
                "no gradient flows back through it."
            )
        return (
            f"The cache stores {what} and drops {graph}: this call returns it with the graph, "
            f"but the next call with these arguments returns {leaf}, where the gradient stops."
        )
