"""What a worker of a `DataLoader` does with the dataset.

That is `__getitem__` or `__iter__`, the transforms behind them, `collate_fn`, `worker_init_fn`. A
worker looks at what it does itself, and what it notices travels with a batch. Most workers notice
nothing: their batches are sent as they are. A batch that cannot be sent is answered for.
"""

from __future__ import annotations

import inspect
import queue
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.integrations.loader import STATEFUL_WORKERS, WORKERS
from pytest_gradguard.runtime.kernel import (
    calls,
    callsite,
    collector,
    error_notes,
    locate,
    messengers,
    probes,
    worker,
)
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import remote
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import Beside, attempt, fault
from pytest_gradguard.runtime.kernel.tasks import (
    Task,
    function_of,
    is_the_users,
    runs_tasks,
    task_of,
)
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.runtime.pitfalls.random.loader_generators import LoaderGenerators

_HOLDER = "dataset_holder"
"""From torch 2.15 on the loop takes the dataset in a list, and empties that."""
_GIVEN = ("dataset_kind", "index_queue", "data_queue", "collate_fn", "init_fn")
"""The other parameters of the loop that workers run, as far as they are looked at."""


def missing_parameter(loop: Any) -> str | None:
    """A parameter that a loop of workers lacks, of those that are looked at."""
    parameters = inspect.signature(loop).parameters
    dataset = () if _HOLDER in parameters else ("dataset",)
    return next((name for name in (*_GIVEN, *dataset) if name not in parameters), None)


def _given_to(process: Any) -> dict[str, Any]:
    """What the loop of a worker is given, by the names of its parameters, before it has begun."""
    names = inspect.signature(process._target).parameters
    given = dict(zip(names, process._args, strict=False))
    if _HOLDER in given:
        (given["dataset"],) = given.pop(_HOLDER)
    return given


class Loading:
    """What a worker works on, in the place of a task's function.

    Attributes:
        dataset, collate_fn, worker_init_fn: what the loader was given.
        iterable: the dataset is a stream of samples.
        function: the function of the user's own that makes the samples, or the batches of them; it
            gives the task its name.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.dataset = given["dataset"]
        self.collate_fn = given["collate_fn"]
        self.worker_init_fn = given["init_fn"]
        self.iterable = given["dataset_kind"] != 0
        self.function = _method_of(self.dataset, self.iterable)
        if not _is_the_users(self.function) and _is_the_users(self.collate_fn):
            self.function = self.collate_fn

    def __call__(self) -> None:
        """Stand for a function."""

    @property
    def items(self) -> remote.Items:
        """The one task of a worker."""
        return [(self, (), {})]


def _method_of(dataset: Any, iterable: bool) -> Any:
    """The method of the innermost dataset that makes the samples."""
    for _ in range(_NESTED):
        inner = getattr(dataset, "dataset", None)
        if inner is None or not type(dataset).__module__.startswith("torch.utils.data"):
            break
        dataset = inner
    for name in ("__iter__",) if iterable else ("__getitems__", "__getitem__"):
        method = getattr(type(dataset), name, None)
        if method is not None:
            return getattr(dataset, name, method)
    return type(dataset)


def _is_the_users(function: Any) -> bool:
    return is_the_users(function_of(function))


_NESTED = 20
"""How many datasets may wrap one another, as `Subset` does."""


class WorkerRun:
    """In place of the method `run` of a worker's process.

    Args:
        process: the process.
        call: the iteration that it works for, in the parent.
        forked: it inherits the dataset; else that is pickled.
        patient: the loader waits forever.
    """

    def __init__(self, process: Any, call: Call, *, forked: bool, patient: bool) -> None:
        self._process = process
        self._token = call.token
        self.forked = forked
        self._patient = patient
        self.loading = Loading(_given_to(process))
        self._call = call
        self._asked: Mapping[str, Any] = {}
        if not forked:  # a forked worker asks itself: some questions are about the fork
            self._asked = probes.ship(call, self.loading.items)
        self._cuda_was_up = cuda.is_up()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._process, self._token, self._asked, self._patient)

    @runs_tasks
    def __call__(self) -> Any:
        with Beside(_Work, self):
            return type(self._process).run(self._process)


def _rebuild(process: Any, token: int, asked: Mapping[str, Any], patient: bool) -> WorkerRun:
    """Rebuild what runs in a worker that was not forked; called by unpickling.

    The process itself is still being unpickled, and has no attributes yet.
    """
    run = WorkerRun.__new__(WorkerRun)
    run._process, run._token, run._asked, run._patient = process, token, asked, patient
    run.forked = run._cuda_was_up = False
    return run


class _Work:
    """What this process, a worker of a loader, does; a block in which it does it."""

    def __init__(self, run: WorkerRun) -> None:
        worker.watch_nested_calls()
        given = _given_to(run._process)
        self._token = run._token
        self._loading = Loading(given)
        self._items = self._loading.items
        self._asked = probes.ship(run._call, self._items) if run.forked else run._asked
        self._patient = run._patient
        self._puts = 0
        self._generators = LoaderGenerators(self._loading, run.forked)
        self._after_fork = run.forked and run._cuda_was_up
        if self._after_fork:
            cuda.note_after_fork()
        self._begun = probes.begin(self._asked, process=True)
        self._inside = collector.here.inside
        index_queue, data_queue = given["index_queue"], given["data_queue"]
        self._put = data_queue.put
        self._get = index_queue.get
        self._index_queue = index_queue
        index_queue.get = self._first_get
        data_queue.put = self._watched_put
        self._fails = data_queue._on_queue_feeder_error
        data_queue._on_queue_feeder_error = self._not_sent
        self._loop = run._process._target.__module__
        loop: Any = sys.modules[self._loop]
        self._wraps = loop.ExceptionWrapper
        self._error: BaseException | None = None
        loop.ExceptionWrapper = self._wrapped

    def __enter__(self) -> None:
        collector.enter(self._inside)

    def __exit__(self, *error: object) -> None:
        collector.leave(self._inside)

    def _first_get(self, *args: Any, **kwargs: Any) -> Any:
        """The worker waits for work: what prepared it has run."""
        del self._index_queue.get
        attempt(self._generators.begin)
        return self._get(*args, **kwargs)

    def _watched_put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        self._puts += 1
        count = self._puts
        if probes.active or self._error or not count & (count - 1) or not self._inside.empty:
            try:
                item = self._noted(item)
            except Exception as error:
                fault(error)
        return self._put(item, *args, **kwargs)

    def _wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """What carries an error to the parent, as text: it is kept until it leaves."""
        self._error = sys.exc_info()[1]
        return self._wraps(*args, **kwargs)

    def _noted(self, item: Any) -> Any:
        """A batch on its way to the parent, with what was noticed since the last one."""
        index, data = item
        error, self._error = self._error, None
        refused = None if error is None else _graph_refused(error, task_of(self._loading))
        if refused is not None:
            data = self._replaced(data, _Refused(self._token, refused, _made(data, self._loop)))
            item = index, data
        results = [data] if error is None else None
        notes = probes.end(self._begun, self._items, results, error, process=True)
        self._begun = probes.begin(self._asked, process=True)
        if self._after_fork:  # that is then what is wrong with its use of CUDA
            notes = [("gg203" if name == "gg201" else name, note) for name, note in notes]
        drawn = self._generators.drawn()
        if drawn:
            notes.append(("gg305", drawn))
        found = worker.take_findings()
        if found:
            collector.leave(self._inside)
            self._inside = collector.here.inside
            collector.enter(self._inside)
        if not (notes or found or cuda.state.first_need):
            return item
        return index, remote.OneResult(self._token, [data], self._items, found, notes)

    def _replaced(self, batch: Any, made: Any) -> Any:
        """`batch`, as it is sent, with something else in place of what was made."""
        return _sent(made, batch[1:] if self._loop == STATEFUL_WORKERS else (), self._loop)

    def _not_sent(self, error: Exception, item: Any) -> None:
        """A batch cannot be pickled: it is dropped, and the loader waits for it.

        Each such error is printed here; the one that the loader raises is explained.
        """
        with error_notes.without(error):  # the finding says more than a note of pickling does
            self._fails(error, item)
            try:
                index, batch = item
                task, made = task_of(self._loading), _made(batch, self._loop)
                note = _graph_in(made, task, refused="send", hangs=self._patient)
                if note is not None:
                    failure = _failure(error) if self._patient else None
                    refused = _Refused(self._token, note, failure)
                    self._put((index, self._replaced(batch, refused)))
            except Exception as mistake:
                fault(mistake)


def _made(batch: Any, loop: str) -> Any:
    """What a worker has made of what its `loop` sends."""
    return batch[0] if loop == STATEFUL_WORKERS and type(batch) is tuple else batch


def _sent(made: Any, rest: tuple[Any, ...], loop: str) -> Any:
    """What its `loop` sends for that: torchdata's adds its number, and the state of the dataset."""
    return (made, *rest) if loop == STATEFUL_WORKERS else made


_NO_DERIVATIVE = "don't support automatic differentiation"


def _graph_refused(error: BaseException, task: Task) -> Object | None:
    """The tensor that requires grad, in the samples that torch refused to collate.

    In a worker, `default_collate` and its like write to shared memory, by ``out=``.
    """
    if not (isinstance(error, RuntimeError) and _NO_DERIVATIVE in str(error)):
        return None
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            samples = dict(callsite.local_names(frame)).get("data", ())
            return _graph_in(samples[0], task, refused="stack") if samples else None
        traceback = traceback.tb_next
    return None


def _graph_in(result: Any, task: Task, *, refused: str, hangs: bool = False) -> Object | None:
    """The first tensor in a batch or sample that torch refuses for its graph.

    Args:
        result: the batch or sample.
        task: what made it.
        refused: what torch refuses to do with it.
        hangs: the loader has no timeout: it waits forever.
    """
    from pytest_gradguard.runtime.frameworks.torch import tensors

    found: list[Any] = []

    def look(item: Any) -> bool:
        tensor = tensors.is_tensor(item)
        if tensor and (
            tensors.grad_fn(item) is not None or (refused == "stack" and item.requires_grad)
        ):
            found.append(item)
        return tensor

    paths = locate.find([("result", result)], look)
    if not found:
        return None
    history = tensors.grad_fn(found[0])
    return Object(
        path=paths[id(found[0])],
        task=task,
        description={**tensors.describe(found[0]), "refused": refused, "hangs": hangs},
        history=None if history is None else type(history).__name__,
        plain=True,
    )


def _failure(error: BaseException) -> Any:
    """What a worker sends in the place of a batch that it could not make."""
    loop: Any = sys.modules[WORKERS]
    where = f"in DataLoader worker process {loop.get_worker_info().id}"
    return loop.ExceptionWrapper((type(error), error, error.__traceback__), where=where)


class _Refused:
    """The news, on their way to the parent, that a batch could not be made or sent.

    Args:
        token: the number of the call.
        note: the tensor that torch refuses to pickle.
        failure: what the loader raises instead of waiting forever; None: it waits until its own
            timeout.
    """

    def __init__(self, token: int, note: Object, failure: Any) -> None:
        self._sent = (token, note, failure)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_refused, self._sent


def _receive_refused(token: int, note: Object, failure: Any) -> Any:
    """Hear, in the parent, that a batch could not be made or sent; called by unpickling.

    Raises:
        queue.Empty: the loader has a timeout, and goes on as if it were over.
    """
    try:
        calls.note_crossed(token, "GG102", note)
    except Exception as error:
        fault(error)
    if failure is None:
        raise queue.Empty
    return failure


def answer(frame: FrameType, error: BaseException) -> None:
    """Answer, in a worker, for the batch that its loop in `frame` fetches."""
    known = frame.f_locals
    failure = _failure(error)
    failure.messengers = messengers.of(error)
    loop = frame.f_globals["__name__"]
    queue = known["data_queue"]
    queue.put((known["idx"], _sent(failure, (known["worker_id"], None), loop)))
    queue.close()
    queue.join_thread()
