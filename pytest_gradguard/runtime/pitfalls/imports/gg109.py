"""GG109: a module's global that differs between the parent and a worker.

A function of an imported module is pickled by name: a worker that was not forked imports the module
again, and uses the globals as that import set them.

Plain values (numbers, strings, dicts and lists of them) are compared only if the module's source
shows that the program has changed them: an import may compute different values itself. A container
that has only grown counts as a cache or a history.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import locate, used_globals
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.checks import TENSORFLOW, TORCH, Probe, isolated
from pytest_gradguard.runtime.kernel.code_names import keys_in
from pytest_gradguard.runtime.kernel.evidence import SAMPLES, TaskEvidence
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import Task, code_of, task_of
from pytest_gradguard.runtime.pitfalls.imports import initial_values, plain_values

CODE = "GG109"
PROBES = (
    Probe(
        "gg109", __name__, asks=(TORCH, TENSORFLOW), ships=isolated, by_function=True, starts=True
    ),
)

_SEARCHED = 500
_NOTHING_IN = (type, types.FunctionType, types.ModuleType)
_KERAS = "keras.src.saving.keras_saveable"
_WHOLE = 4_096
"""Larger tensors are compared by this many of their elements."""


class Global(NamedTuple):
    """A global of a module that a worker's function reads.

    Attributes:
        module: the module's name.
        name: the global's name in it, followed by the attributes that are read.
        reader: the function that reads it.
        keys: the keys looked up in it, in dicts of plain values.
    """

    module: str
    name: str
    reader: Task
    keys: tuple[Any, ...] = ()

    @property
    def shown(self) -> str:
        """The global as the program may write it."""
        return f"{self.module}.{self.name}" + "".join(f"[{key!r}]" for key in self.keys)


class State(NamedTuple):
    """The value of a global in one process.

    Attributes:
        digest: of the values, shapes and dtypes of all tensors in it, or of the plain value.
        whole: it is a tensor, a variable or a plain value itself, not a container of some.
        kind: the name of its class.
        value: the plain value, as messages show it.
    """

    digest: int
    whole: bool
    kind: str
    value: str | None = None


class Asked(NamedTuple):
    """The globals that the tasks of a batch read, with their state in the parent."""

    process: str
    states: dict[Global, State]


# -- in the parent -------------------------------------------------------------------------------


class _Read:
    """The globals that the tasks of one call read, computed once for each function."""

    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer
        self.functions: dict[Any, Asked | None] = {}
        self.states: dict[Global, State | None] = {}
        self._last: tuple[Any, Asked | None] = (None, None)

    def of(self, function: Any) -> Asked | None:
        """The globals that `function` reads by name; most tasks have the last one's function."""
        last = self._last
        if function is not last[0]:
            last = self._last = (function, self._of(function))
        return last[1]

    def _of(self, function: Any) -> Asked | None:
        code = code_of(function)
        if code is None:
            return None
        if code not in self.functions:
            read = _read_by(function, self._initializer)
            self.states.update({found: _state_of(found) for found in read - self.states.keys()})
            ordered = sorted(read, key=lambda found: found.shown)
            states = {one: state for one in ordered if (state := self.states[one]) is not None}
            self.functions[code] = Asked(LINEAGE, states) if states else None
        return self.functions[code]


def ship(call: Call, items: Any) -> Asked | None:
    """Return the globals that the functions of a batch read by name, with their states."""
    read: _Read | None = call.remembered.get(CODE)
    if read is None:
        read = call.remembered[CODE] = _Read(call.initializer)
    found: Asked | None = None
    previous = None
    try:
        for function, _, _ in items:
            if function is not previous:
                previous = function
                more = read.of(function)
                if more is not None and more is not found:
                    states = more.states if found is None else {**found.states, **more.states}
                    found = Asked(LINEAGE, states)
    except (TypeError, ValueError):
        return None  # not tasks: the call itself will fail
    return found


def start(call: Call, task: Any, forked: bool) -> Asked | None:
    """As `ship`, for a process that the program starts; a forked one has inherited them."""
    return None if forked else ship(call, [task])


def on_note(call: Call, note: list[tuple[Global, State, str | None]]) -> None:
    """Report the globals that differ in a worker of `call`."""
    for found, state, there in note:
        evidence = Evidence.of(call)
        if evidence is not None:
            evidence.note(found, state, there)


class Evidence(TaskEvidence):
    """Tasks of one call that read a global which differs in their worker."""

    code = CODE

    def __init__(self, site: Site | None, backend: str, **details: Any) -> None:
        super().__init__(site, backend, **details)
        self._differ: dict[str, str] = {}

    def note(self, found: Global, state: State, there: str | None) -> None:
        """Count a global that differs, with its state here and its plain value in the worker."""
        if not self.count:
            self.details["framework"] = None if state.value is not None else _framework(found)
            self.details["direction"] = "capture"
            self.details["object"] = found.shown
            self.details["type"] = state.kind
        here = state.value
        if found.shown not in self._differ and len(self._differ) < SAMPLES:
            self._differ[found.shown] = _difference(here, there)
            if found.shown == self.details["object"]:
                if there is not None:
                    self.details["in_worker"] = there
                if here is not None:
                    self.details["here"] = here
        reader = found.reader
        self.add(reader, f"`{reader.name}` reads `{found.shown}`")

    def message(self) -> str:
        (first, differs), *others = self._differ.items()
        more = "".join(f"; `{shown}` {different}" for shown, different in others)
        return (
            f"`{first}`, which `{self.first.name}` reads in {self.backend} workers, "
            f"{differs}{more}: each worker imports the module again, and does not see what this "
            "process changed after its own import."
        )


def _difference(here: str | None, there: str | None) -> str:
    if there is None:
        return "has different values there"
    return f"is {there} there" + ("" if here is None else f" and {here} here")


def _framework(found: Global) -> str:
    value = _value_of(found)
    tensors = _tensors_in(found.name, value)
    return next(("torch" if _is_torch(t) else "tensorflow" for t in tensors.values()), "torch")


def _read_by(function: Any, initializer: Any) -> set[Global]:
    """The globals read by name in a task's function, and in the user's functions that it calls.

    A function pickled by value takes its globals along, with the values here. Globals that the
    tasks, or their worker's initializer, assign are the worker's own.
    """
    found: set[Global] = set()
    uses = used_globals.uses_of(function)
    if initializer is not None:
        uses.writes.update(used_globals.uses_of(initializer).writes)
    for read in uses.reads:
        reader = read.reader
        if (
            read.by_name
            and read.module not in (None, "__main__")
            and not issubclass(type(read.value), _NOTHING_IN)
            and not uses.own(read)
        ):
            known = Global(str(read.module), ".".join(read.path), task_of(reader))
            keys = keys_in(reader.__code__, read.names) if type(read.value) is dict else None
            if keys or plain_values.is_plain(read.value):
                found.update(_changed(known, read, keys or [()]))
            if not plain_values.is_plain(read.value):
                found.add(known)
    return found


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _changed(found: Global, read: used_globals.Read, keys: Iterable[Any]) -> Iterator[Global]:
    """Yield the plain values under `keys` that the program has changed since the import."""
    module = sys.modules.get(found.module)
    before = initial_values.UNKNOWN
    if module is not None and not _is_dunder(found.name):
        before = initial_values.initial_value(module, read.path)
    if before is initial_values.UNKNOWN:
        return
    for path in keys:
        was, now = (plain_values.at_keys(value, path) for value in (before, read.value))
        plain = plain_values.is_plain(was) and plain_values.is_plain(now)
        if plain and now is not plain_values.MISSING and plain_values.differs(now, was):
            yield found._replace(keys=path)


# -- in the worker -------------------------------------------------------------------------------

_first: dict[tuple[str, str, tuple[Any, ...]], State | None] = {}
"""The state of each global when first inspected in this worker: as the import set it."""

_EMPTY = State(0, False, "NoneType")
"""The state of a global that the import set to None, for the process to fill in."""


def begin(asked: Asked, process: bool) -> After | None:
    """Compare the globals of a new import with the parent's, before the tasks use them."""
    if asked.process == LINEAGE:
        return None  # forked: it has inherited them
    stale: list[Global] = []
    for found, there in asked.states.items():
        key = _key(found)
        if key not in _first:
            _first[key] = _EMPTY if _is_none(found) else _state_of(found)
        first = _first[key]
        if first is _EMPTY:
            if _is_none(found):
                stale.append(found)
            continue
        if first is None or first.digest == there.digest:
            continue
        now = _state_of(found)
        if now is None or now.digest == there.digest:
            continue
        if now.whole and now.digest != first.digest:
            continue  # the tasks write to it: it is their own
        stale.append(found)
    if not stale:
        return None
    watcher = _watch_reads()

    def after(
        items: Any, results: Any, error: BaseException | None
    ) -> list[tuple[Global, State, str | None]] | None:
        read = None if watcher is None else {id(variable) for variable in watcher.end()}
        kept = [
            (found, asked.states[found], _worker_value(found))
            for found in stale
            if not _written(found, asked.states[found]) and (read is None or _is_among(read, found))
        ]
        return kept or None

    return after


def _key(found: Global) -> tuple[str, str, tuple[Any, ...]]:
    return (found.module, found.name, found.keys)


def _worker_value(found: Global) -> str | None:
    """The plain value of a global in this worker, if it has one."""
    first = _first[_key(found)]
    return "None" if first is _EMPTY else first and first.value


def _written(found: Global, there: State) -> bool:
    """Whether the tasks that have just run assigned it, values of their own or the parent's."""
    first = _first[_key(found)]
    if first is _EMPTY:
        return not _is_none(found)
    now = _state_of(found)
    if first is None or now is None or now.digest == there.digest:
        return True
    return now.whole and now.digest != first.digest


def _watch_reads() -> Any:
    """Have TensorFlow, if loaded, record which trainable variables are read."""
    if not hasattr(sys.modules.get("tensorflow"), "GradientTape"):
        return None
    from pytest_gradguard.runtime.pitfalls.tapes import reads

    return reads.Reads()


def _is_among(read: set[int], found: Global) -> bool:
    """Whether the recorded reads include a global, as far as TensorFlow records them."""
    tensors = _tensors_in(found.name, _value_of(found)).values()
    if not all(_is_tensorflow(one) and hasattr(one, "trainable") for one in tensors):
        return True
    noted = [id(one) for one in tensors if one.trainable]
    return not noted or not read.isdisjoint(noted)


# -- the values of globals -------------------------------------------------------------------------


def _value_of(found: Global) -> Any:
    module = sys.modules.get(found.module)
    if module is None:
        return None
    value = used_globals.value_at(module, tuple(found.name.split(".")))
    return plain_values.at_keys(value, found.keys)


def _is_none(found: Global) -> bool:
    """Whether a global of a module imported here is None, or its owner is."""
    value: Any = sys.modules.get(found.module)
    names = iter(found.name.split(".") if value is not None else ())
    while value is not None and (name := next(names, None)) is not None:
        value = used_globals.held(value, name)
    value = plain_values.at_keys(value, found.keys)
    return value is None and found.module in sys.modules


def _state_of(found: Global) -> State | None:
    """The state of a global in this process; None if nothing in it can be compared."""
    value = _value_of(found)
    if value is not None and plain_values.is_plain(value):
        return State(
            plain_values.digest(value), True, type(value).__name__, plain_values.shown(value)
        )
    tensors = _tensors_in(found.name, value)
    if not tensors:
        return None
    digest = 0
    for path, tensor in sorted(tensors.items()):
        about = _bytes_of(tensor)
        if about is None:
            return None
        digest = zlib.crc32(about, zlib.crc32(path.encode(), digest))
    direct = len(tensors) == 1 and next(iter(tensors.values())) is value
    return State(digest, direct, type(value).__name__)


def _tensors_in(name: str, value: Any) -> dict[str, Any]:
    """The tensors in `value`, by path; large structures are searched in part."""
    if value is None or issubclass(type(value), _NOTHING_IN):
        return {}
    kept: list[Any] = []
    layers: list[Any] = []

    def wanted(item: Any) -> bool:
        if _is_torch(item) or _is_tensorflow(item):
            kept.append(item)
        elif _is_keras(item):
            layers.append(item)
        else:
            return _draws_numbers(type(item))
        return True

    paths = locate.find([(name, value)], wanted, limit=_SEARCHED)
    found = {paths[id(item)]: item for item in kept}
    for layer in layers:
        for index, weight in enumerate(_weights_of(layer)):
            found[f"{paths[id(layer)]}.weights[{index}]"] = weight
    return found


def _is_keras(item: Any) -> bool:
    saveable = getattr(sys.modules.get(_KERAS), "KerasSaveable", ())
    return issubclass(type(item), saveable)


def _weights_of(saveable: Any) -> list[Any]:
    """The weights of a Keras model or layer, without other attributes."""
    layer = getattr(sys.modules.get("keras"), "Layer", ())
    if not issubclass(type(saveable), layer):
        return []
    try:
        return [weight._value for weight in saveable.weights]
    except Exception:  # the program's own property, or none of Keras's variables: not known
        return []


def _draws_numbers(kind: type) -> bool:
    """Whether it is a random generator, whose state is the numbers to come."""
    package = kind.__module__.partition(".")[0]
    return package in ("keras", "tensorflow") and kind.__name__ in ("Generator", "SeedGenerator")


def _is_torch(item: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(type(item), getattr(torch, "Tensor", ()))


def _is_tensorflow(item: Any) -> bool:
    kind = type(item)
    return kind.__module__.startswith("tensorflow.python") and hasattr(kind, "numpy")


def _bytes_of(tensor: Any) -> bytes | None:
    """Shape, dtype and values, or a sample of them, of a tensor in this process."""
    if _is_torch(tensor):
        from pytest_gradguard.runtime.frameworks.torch import tensors as torch

        return torch.fingerprint(tensor, _WHOLE)
    try:
        array = tensor.numpy()
        values = array.reshape(-1)
        step = max(1, values.size // _WHOLE)
        return f"{array.shape}{array.dtype}".encode() + bytes(values[::step].tobytes())
    except Exception:  # a symbolic tensor, or a device that is gone: not known
        return None
