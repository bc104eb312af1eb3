"""The only place that knows joblib's classes: it watches calls begin and batches leave."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_gradguard.runtime import calls, collector, locate, looks, travelling, worker
from pytest_gradguard.runtime.calls import Call, Light
from pytest_gradguard.runtime.crossing import bracketed
from pytest_gradguard.runtime.evidence import Crossed, Object
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.frameworks import Framework
from pytest_gradguard.runtime.patching import Patch, Patches
from pytest_gradguard.runtime.tasks import roots_of, task_of
from pytest_gradguard.runtime.travelling import PLAIN


class UnknownJoblib(Exception):
    """This joblib is built otherwise than those that the guard knows."""


CALL = "_gradguard_call"
"""The attribute that holds the call: of a `Parallel` while it runs, of a batch for processes."""

_patches: Patches | None = None
_unpickling: list[types.ModuleType] = [worker]
"""The modules that workers import by name."""
batches: type | None = None
"""joblib's class of batches, once it is watched."""


def apply(module: str = "joblib.parallel") -> None:
    """Watch `joblib.Parallel`, where joblib is loaded.

    Raises:
        UnknownJoblib: this joblib's `Parallel` lacks what the guard watches.
    """
    global _patches, batches
    if _patches is not None and _patches.applied:
        return
    parallel = sys.modules.get(module)
    if parallel is None or not hasattr(parallel, "Parallel"):
        return
    if _patches is None:
        _patches = Patches(
            [
                Patch(parallel.Parallel, "__call__", _watched_call),
                Patch(parallel.Parallel, "_dispatch", _watched_dispatch),
                Patch(parallel.BatchedCalls, "__reduce__", _watched_reduce),
            ]
        )
    try:
        _patches.apply()
        batches = parallel.BatchedCalls
    except AttributeError as error:
        version = getattr(sys.modules.get("joblib"), "__version__", "of unknown version")
        raise UnknownJoblib(
            f"joblib {version} is not known to gradguard ({error}); "
            "its parallel calls are not watched"
        ) from error


def undo() -> None:
    """Leave joblib as it was."""
    if _patches is not None:
        _patches.undo()


def _watched_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, iterable: Any) -> Any:
        call = calls.begin()
        if any(sys.modules.setdefault(one.__name__, one) is not one for one in _unpickling):
            call = None  # somebody has imported the guard twice: ours cannot be pickled
        if call is None:
            try:
                return original(self, iterable)
            except BaseException as error:
                without_this_frame(error)
                raise
        if call.asked:
            iterable = looks.pulled(call, iterable)
        vars(self)[CALL] = call
        try:
            output = original(self, iterable)
        except BaseException as error:
            without_this_frame(error)
            _forget(self, call)
            calls.failed(call, error)
            raise
        if getattr(self, "return_generator", False):
            return _announcing(output, self, call)
        _forget(self, call)
        if call.collector.announce is not None:
            collector.announce(call.collector, call.evidence.values())
        return output

    return __call__


def _forget(parallel: Any, call: Call) -> None:
    if vars(parallel).get(CALL) is call:
        del vars(parallel)[CALL]


def _announcing(outputs: Iterator[Any], parallel: Any, call: Call) -> Iterator[Any]:
    try:
        yield from outputs
    except GeneratorExit:
        raise
    except BaseException as error:
        without_this_frame(error)
        calls.failed(call, error)
        raise
    finally:
        _forget(parallel, call)
    collector.announce(call.collector, call.evidence.values())


def _watched_dispatch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _dispatch(self: Any, batch: Any) -> Any:
        call = getattr(self, CALL, None)
        if call is not None:
            if type(self._backend) is call.pickling:
                setattr(batch, CALL, call)
            else:
                batch = _guarded(batch, self, call)
        try:
            return original(self, batch)
        except BaseException as error:
            without_this_frame(error)
            raise

    return _dispatch


def _watched_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    from pytest_gradguard.runtime import worker_batch  # it imports joblib

    _unpickling[:] = [worker, worker_batch]
    WorkerBatch, unpack = worker_batch.WorkerBatch, worker_batch.unpack

    def light(call: Call, items: Any) -> Light:
        """How single tasks with the function of these and plain arguments travel."""
        function = items[0][0]
        if not travelling.light(function) or not looks.questions(call).lasting:
            return Light(function)
        asked = looks.ship(call, items)
        if asked:
            return Light(function, unpack, (call.token, asked))
        return Light(function, WorkerBatch, state=worker_batch.state(call.token))

    def watched(self: Any, call: Call, reduction: Any) -> Any:
        items = self.items
        rebuild, arguments = reduction
        if rebuild is not type(self):
            return reduction  # not as joblib builds it
        if len(items) == 1 and type(items[0]) is tuple:  # worth a look where they are few
            known = call.light
            if known is None or known.function is not items[0][0]:
                call.light = light(call, items)
        asked = looks.ship(call, items)
        return bracketed(Shipment(call, items), unpack, (call.token, asked, *arguments))

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        reduction = original(self)
        call = getattr(self, CALL, None)
        if call is None:
            return reduction
        try:
            known = call.light
            if known is not None and len(self.items) == 1:
                function, args, kwargs = self.items[0]
                if function is known.function and known.rebuild is not None and not kwargs:
                    for argument in args:  # written out, for it runs in every small batch
                        if type(argument) not in PLAIN:
                            break
                    else:
                        return (known.rebuild, known.before + reduction[1], known.state)
            return watched(self, call, reduction)
        except Exception as error:
            fault(error)
            return reduction

    return __reduce__


class Backend(NamedTuple):
    """What the guard needs to know of a backend.

    Attributes:
        name: as joblib and the findings call it.
        pickles: it pickles whole batches for other processes; else it runs them in threads.
    """

    name: str
    pickles: bool


_BACKENDS = {
    "LokyBackend": Backend("loky", True),
    "MultiprocessingBackend": Backend("multiprocessing", True),
    "ThreadingBackend": Backend("threading", False),
    "DaskDistributedBackend": Backend("dask", False),
}
_BACKEND_MODULES = ("joblib._parallel_backends", "joblib._dask")
_backends: dict[type, Backend | None] = {}


def _guarded(batch: Any, parallel: Any, call: Call) -> Any:
    try:
        kind = type(parallel._backend)
        if kind not in _backends:
            _backends[kind] = _backend_of(kind)
        backend = _backends[kind]
        if backend is None:
            return batch
        call.backend = backend.name
        if backend.pickles:
            call.pickling = kind
            setattr(batch, CALL, call)
            return batch
        if backend.name == "dask":
            from pytest_gradguard.runtime.doors import dask_joblib

            return dask_joblib.DaskBatch(batch, call, parallel._backend)
        asked = looks.ship(call, batch.items)
        return ThreadBatch(batch, call, asked) if asked else batch
    except Exception as error:
        fault(error)
        return batch


def _backend_of(kind: type) -> Backend | None:
    if kind.__module__.partition(".")[0] == "ray":  # joblib's own for multiprocessing, inherited
        return Backend("ray", True)
    for base in kind.__mro__:
        if base.__module__ in _BACKEND_MODULES and base.__name__ in _BACKENDS:
            return _BACKENDS[base.__name__]
    return None


class KnownBatch:
    """A batch of joblib's that knows its call; in all else, it is that batch."""

    def __init__(self, batch: Any, call: Call) -> None:
        self._batch = batch
        self._call = call

    def __len__(self) -> int:
        return len(self._batch)

    def __call__(self) -> Any:
        return self._batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class ThreadBatch(KnownBatch):
    """A batch that is looked at in the thread where it runs."""

    def __init__(self, batch: Any, call: Call, asked: Mapping[str, Any]) -> None:
        super().__init__(batch, call)
        self._asked = asked

    def __call__(self) -> Any:
        items = self._batch.items
        begun = looks.begin(self._asked, process=False)
        try:
            results = self._batch()
        except BaseException as error:
            without_this_frame(error)
            looks.hear(self._call, looks.end(begun, items, None, error, process=False))
            raise
        looks.hear(self._call, looks.end(begun, items, results, process=False))
        return results


class Shipment:
    """Hears of the tensors in one batch on its way to a worker.

    A model has many parameters: what comes after the first few costs a count and a weak
    reference, and the counts are handed over at the end.
    """

    _handed: dict[int, str] | None = None
    _kept: set[int] | None = None

    def __init__(self, call: Call, items: Any) -> None:
        self.call = call
        self._items = items

    # Most batches carry nothing that counts: what there is to remember is made as it is met.

    @functools.cached_property
    def _paths(self) -> dict[int, dict[int, str]]:
        return {}

    @functools.cached_property
    def _evidence(self) -> dict[str, Crossed]:
        return {}

    @functools.cached_property
    def _uncounted(self) -> dict[str, int]:
        return {}

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Note a tensor that may need a gradient; its reduction stays as it is."""
        if framework.wanted(self.call, tensor) and not self._is_kept(tensor, framework):
            self._ship("GG101", tensor, framework)
        return reduction

    def _is_kept(self, tensor: Any, framework: Framework) -> bool:
        """Whether an object only keeps `tensor`, as an estimator does with its last loss."""
        if not framework.spent(tensor):
            return False
        roots = roots_of(self._items)
        if self._handed is None:
            self._handed = framework.find(roots, deep=False)
        if id(tensor) in self._handed:
            return False
        if self._kept is None:
            self._kept = {
                identity
                for identity, path in framework.find(roots).items()
                if not any(mark in path for mark in locate.CAPTURES)
            }
        return id(tensor) in self._kept

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """Note a parameter that requires grad, or a variable that is trained."""
        self._ship("GG107", parameter, framework)

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Note an optimizer that arrives without its state."""
        self._ship("GG110", optimizer, framework)
        return reduction

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Note a tensor or array on a GPU."""
        if "GG202" in self._uncounted:
            self._uncounted["GG202"] += 1
        else:
            self._note("GG202", tensor, framework)
        return framework.on_its_way(reduction)

    def _ship(self, code: str, item: Any, framework: Framework) -> None:
        if code in self._uncounted:
            self._uncounted[code] += 1
            path = ""
        else:
            path = self._note(code, item, framework)
        shipped = self.call.shipped
        if framework.BACKWARDS and id(item) not in shipped:
            shipped[id(item)] = (weakref.ref(item), path)

    def ended(self) -> None:
        """The batch is pickled: hand over the counts."""
        if "_uncounted" not in self.__dict__:
            return
        for code, count in self._uncounted.items():
            if count and code in self._evidence:
                self._evidence[code].add_more(count)

    def _note(self, code: str, item: Any, framework: Framework) -> str:
        """Count `item`, describe it where that is still wanted, and return its path."""
        call = self.call
        if code == "GG202":  # whatever its gradients
            history = None
        else:
            call.ships_gradients = call.ships_gradients or framework.BACKWARDS
            history = framework.history(item)
        path = ""
        if code in call.dropped:
            full = True
        else:
            evidence = self._evidence.get(code) or self._open(code)
            searched = id(framework) in self._paths or not evidence.samples
            if evidence.wants_sample and (searched or call.may_search()):
                sample = self._sample(item, history, framework)
                path = sample.path
                evidence.add(sample)
                full = False
            else:
                evidence.add_more(1)
                full = True
        if history is not None:
            full = False
            if call.may_search():
                for leaf in framework.leaves(history):
                    call.remember_shipped(leaf, path)
        if full:
            self._uncounted[code] = 0
        return path

    def _open(self, code: str) -> Crossed:
        call = self.call
        key = (code, call.site and call.site.key, call.backend)
        evidence = call.collector.evidence(key, lambda: Crossed(code, call.site, call.backend))
        assert isinstance(evidence, Crossed)
        self._evidence[code] = evidence
        call.note(evidence)
        return evidence

    def _sample(self, item: Any, history: Any, framework: Framework) -> Object:
        paths = self._paths.get(id(framework))
        if paths is None:
            paths = self._paths[id(framework)] = framework.find(roots_of(self._items))
        owner, rest = framework.met(item)
        index, _, path = paths.get(id(owner), "0|args").partition("|")
        return Object(
            path=path.lstrip(".") + rest,
            task=task_of(self._items[int(index)][0]),
            description=framework.describe(item),
            history=None if history is None else type(history).__name__,
            plain=True,
        )
