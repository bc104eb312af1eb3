"""`distributed.Client`: `submit`, `map`, `compute`, and joblib's dask backend above it.

Actors are made that way, too (`actors`). `Client.run` pickles the function, its arguments and its
keywords one after the other in the client's event loop, before it waits for the first time.

Whatever a client sends it pickles in one place, in the calling thread. There a transfer is active,
and each task that is pickled says so first, and that it is to become a `DaskTask`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.integrations.dask import (
    WORKERS,
    actors,
    marks,
    nodes,
    opening,
    scattering,
)
from pytest_gradguard.runtime.integrations.dask.opening import (
    PASSED,
    in_this_process,
    opened,
    takes_notes,
)
from pytest_gradguard.runtime.integrations.dask.worker import DaskTask, DirectTask, received
from pytest_gradguard.runtime.kernel import collector, probes, transfer
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    fault,
    theirs_only,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.shipment import Shipment

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.framework import Framework


def patches(module: ModuleType) -> list[Patch]:
    """Watch the clients of `distributed`; those of old releases cannot be."""
    return [
        Patch(module.Client, "_graph_to_futures", _watched_graph),
        observe(module.Client, "scatter", before=scattering.sending, after=scattering.sent),
        observe(module.Client, "run", before=_runs, arguments=_with_task, after=_ran),
        Patch(module.Client, "_run", _running),
        observe(nodes.task_spec().Task, "__getstate__", result=_pickled),
    ]


class GraphTransfer:
    """One pickling of a client's: tasks of one or more calls.

    Attributes:
        call: the call.
        actors: classes that are called in it make actors.
        task: what is pickled now.
    """

    def __init__(self, call: Call | None, actors: bool = False) -> None:
        self.call = call
        self.actors = actors
        self.task: ShippedDaskTask | None = None
        self._shipment: Shipment | None = None
        self._shipments: dict[int, Shipment] = {}
        self._seen: set[tuple[int, str]] = set()
        self._tasks: dict[int, ShippedDaskTask] = {}

    def task_of(self, call: Call, node: Any) -> ShippedDaskTask:
        """What stands for the function of `node`; the same where it is pickled twice."""
        task = self._tasks.get(id(node))
        if task is None:
            items = [(node.func, node.args, node.kwargs)]
            task = self._tasks[id(node)] = ShippedDaskTask(call, node.func, items)
        return task

    def now(self, task: ShippedDaskTask) -> None:
        """Hear that `task` is pickled now; its arguments follow."""
        self.task = task
        shipment = self._shipments.get(id(task.items))
        if shipment is None:
            shipment = self._shipments[id(task.items)] = Shipment(task.call, task.items)
        self._shipment = shipment

    def _is_news(self, item: Any, rest: str = "") -> bool:
        """Pickling is tried twice where the first pickler fails."""
        known = (id(item), rest) in self._seen
        self._seen.add((id(item), rest))
        return not known

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Note a tensor that may need a gradient."""
        if self._shipment is not None and self._is_news(tensor):
            return self._shipment.tensor(tensor, reduction, framework)
        return reduction

    @property
    def parameters(self) -> GraphTransfer:
        """What takes one parameter after the other."""
        return self

    def append(self, item: tuple[Any, Framework]) -> None:
        """Keep a parameter for the shipment that it is in."""
        if self._shipment is not None and self._is_news(item[0]):
            self._shipment.parameters.append(item)

    @property
    def inside(self) -> set[int] | None:
        """The ids of the modules that stand in another one of the same shipment."""
        return None if self._shipment is None else self._shipment.inside

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """Note a parameter that requires grad, or a variable that is trained."""
        if self._shipment is not None and self._is_news(*framework.met(parameter)):
            self._shipment.parameter(parameter, framework)

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Note an optimizer that arrives without its state."""
        if self._shipment is not None and self._is_news(optimizer):
            return self._shipment.optimizer(optimizer, reduction, framework)
        return reduction

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Note a tensor or array on a GPU."""
        if self._shipment is not None and self._is_news(framework.met(tensor)[0], "on_gpu"):
            return self._shipment.on_gpu(tensor, reduction, framework)
        return reduction

    def differentiated(self, tensor: Any, reduction: Any) -> Any:
        """Note a tensor of a derivative that the caller takes."""
        if self._shipment is not None and self._is_news(tensor, "differentiated"):
            return self._shipment.differentiated(tensor, reduction)
        return reduction

    def module(self, module: Any, reduction: Any) -> Any:
        """Note a module."""
        return reduction if self._shipment is None else self._shipment.module(module, reduction)

    def ended(self) -> None:
        """Hear that the pickling is over."""
        for shipment in self._shipments.values():
            shipment.ended()


class ShippedDaskTask(DaskTask):
    """A `DaskTask` in the process of its call, before it is pickled."""

    def __init__(
        self,
        call: Call,
        function: Any,
        items: Any,
        batch: Any = None,
        arrives: type[DaskTask] = DaskTask,
    ) -> None:
        super().__init__(marks.here(), call.token, probes.ship(call, items), function)
        self.call = call
        self.items = items
        self.batch = batch
        self._arrives = arrives
        self.given = attempt(scattering.use, call, items, instead={})

    def __reduce__(self) -> tuple[Any, ...]:
        current = transfer.active.transfer
        if isinstance(current, GraphTransfer):
            attempt(current.now, self)
        return (self._arrives, (*self._gradguard, self.given))


def _watched_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _graph_to_futures(self: Any, expr: Any, *args: Any, **kwargs: Any) -> Any:
        makes_actors = bool(kwargs.get("actors")) and attempt(_are_watched, self)
        watched = attempt(graph_transfer, self, expr, makes_actors)
        if watched is None:
            return original(self, expr, *args, **kwargs)
        call = watched.call
        restore = attempt(prepare, self, expr, call, makes_actors)
        try:
            with Beside(transfer.during, watched):
                futures = original(self, expr, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            if watched.task is not None and watched.task.batch is not None:
                attempt(watched.task.batch.cannot_leave, error)
            raise
        finally:
            if restore is not None:
                attempt(restore)
        if call is not None:
            for future in futures.values():
                future._gradguard_call = call
            if call.shipped:
                opening.kept.append(call)  # other futures may stand for its results, too
            if makes_actors:
                attempt(actors.made, call, futures)
            with theirs_only:
                attempt(call.announce)
        return futures

    return _graph_to_futures


def _are_watched(client: Any) -> bool:
    """Whether actors of `client` are: in this process they would be given no copies."""
    return takes_notes(client) and not in_this_process(client)


def graph_transfer(client: Any, expr: Any, actors: bool = False) -> GraphTransfer | None:
    """What hears of the pickling of a graph, which may make actors; None, where nobody listens."""
    if collector.innermost() is None:
        return None
    single = None if _is_map(expr) else client
    return GraphTransfer(calling.begin(WORKERS, passing=PASSED, single=single), actors)


def prepare(client: Any, expr: Any, call: Call | None, actors: bool = False) -> Callable[[], None]:
    """Put a watched function into the expression of `Client.map`; returns how to undo it."""
    try:
        if call is not None:
            opened(client, call)
            if _is_map(expr) and is_users(expr.func, actors):
                function = expr.operands[0]
                iterables = [list(values) for values in expr.iterables]
                items = [(function, one, expr.kwargs) for one in zip(*iterables, strict=False)]
                expr.operands[0] = ShippedDaskTask(call, function, items)
                return functools.partial(expr.operands.__setitem__, 0, function)
    except Exception as error:
        fault(error)
    return _nothing


def _is_map(expr: Any) -> bool:
    """Whether this is what `Client.map` makes."""
    return type(expr).__name__ == "_MapExpr"


def _nothing() -> None:
    """Undo nothing."""


def _pickled(state: Any, node: Any) -> Any:
    current = transfer.active.transfer
    if not isinstance(current, GraphTransfer) or current.call is None:
        return None
    function = node.func
    if not is_users(function, current.actors):
        return None
    task = current.task_of(current.call, node)
    current.now(task)
    return tuple(task if value is function else value for value in state)


def is_users(function: Any, actors: bool = False) -> bool:
    """Whether `function` is to be watched: no machinery of dask's, and nothing that dask treats in
    ways of its own; a class, where it makes `actors`."""
    if isinstance(function, DaskTask) or (isinstance(function, type) and not actors):
        return False
    if inspect.iscoroutinefunction(function):
        return False
    if inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return False
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] not in PASSED


# -- Client.run ------------------------------------------------------------------------------------

_OPTIONS = frozenset({"workers", "wait", "nanny", "on_error"})
"""The keywords of `Client.run` itself."""


def _runs(self: Any, function: Any, *args: Any, **kwargs: Any) -> ShippedDaskTask | None:
    if not (is_users(function) and callable(function) and takes_notes(self)):
        return None
    call = calling.begin(WORKERS, passing=PASSED, single=self)
    if call is None:
        return None
    opened(self, call)
    given = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    return ShippedDaskTask(call, function, [(function, args, given)], arrives=DirectTask)


def _with_task(
    task: ShippedDaskTask, /, self: Any, function: Any, *args: Any, **kwargs: Any
) -> Arguments:
    return (self, task, *args), kwargs


def _ran(task: ShippedDaskTask, /, *_: Any, **__: Any) -> None:
    task.call.announce()


def _running(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _run(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        running = original(self, function, *args, **kwargs)
        if not isinstance(function, ShippedDaskTask):
            return await running
        results = await _within(Beside(transfer.during, GraphTransfer(function.call)), running)
        return results and {name: received(one) for name, one in results.items()}

    return _run


@types.coroutine
def _within(context: Beside, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await `coroutine`, whose work until it first waits is done in `context`."""
    with context:
        try:
            awaited = coroutine.send(None)
        except StopIteration as end:
            return end.value
    while True:
        try:
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
        except StopIteration as end:
            return end.value
