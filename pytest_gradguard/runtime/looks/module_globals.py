"""GG109: a module's global that differs between the parent and a worker.

A function of an imported module is pickled by its name: a worker that was not forked imports the
module afresh, and uses the globals as that import made them.
"""

from __future__ import annotations

import dis
import functools
import itertools
import os
import sys
import types
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime import callsite, locate
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.looks import After
from pytest_gradguard.runtime.noticed import Noticed, noticed
from pytest_gradguard.runtime.tasks import Task, function_of, task_of

_PROCESS = f"{os.getpid()}-{os.urandom(8).hex()}"
"""This process and those forked from it: they share what was imported before."""

_FUNCTIONS = 100
_SEARCHED = 500
_WHOLE = 4_096
"""Tensors of up to this many elements are compared whole, larger ones by that many of theirs."""


class Global(NamedTuple):
    """A global of a module that a worker's function reads.

    Attributes:
        module: the module's name.
        name: the global's name in it.
        reader: the function that reads it.
        writes: that function binds the name itself, too.
    """

    module: str
    name: str
    reader: Task


class State(NamedTuple):
    """What a global is worth in one process.

    Attributes:
        digest: of the values, shapes and dtypes of all tensors in it.
        tensor: it is a tensor or variable itself, else something that holds some.
        kind: the name of its class.
    """

    digest: int
    tensor: bool
    kind: str


class Asked(NamedTuple):
    """The globals that the tasks of a batch read, as they are in the parent."""

    process: str
    states: dict[Global, State]


# -- in the parent -------------------------------------------------------------------------------


class _Read:
    """What the tasks of one call read, and what it is worth, worked out once a function."""

    def __init__(self) -> None:
        self.functions: dict[Any, Asked | None] = {}
        self.states: dict[Global, State | None] = {}

    def of(self, function: Any) -> Asked | None:
        """The globals that `function` reads by name."""
        code = getattr(function, "__code__", None)
        if code is None:
            return None
        if code not in self.functions:
            read = _read_by(function)
            self.states.update({found: _state_of(found) for found in read - self.states.keys()})
            states = {found: state for found in read if (state := self.states[found]) is not None}
            self.functions[code] = Asked(_PROCESS, states) if states else None
        return self.functions[code]


_read: weakref.WeakKeyDictionary[Call, _Read] = weakref.WeakKeyDictionary()


def ship(call: Call, items: Any) -> Asked | None:
    """The globals that the functions of a batch read by name, and what they are worth now."""
    if call.backend == "threading":
        return None
    read = _read.get(call)
    if read is None:
        read = _read[call] = _Read()
    found: Asked | None = None
    previous = None
    for task in items:
        if not isinstance(task, tuple) or not task:
            return None  # no task: the call will say so
        function = task[0]
        if function is not previous:
            previous = function
            more = read.of(function_of(function))
            if more is not None and more is not found:
                states = more.states if found is None else {**found.states, **more.states}
                found = Asked(_PROCESS, states)
    return found


def heard(call: Call, note: list[Global]) -> None:
    """Report the globals that differ in a worker of `call`."""
    for found in note:
        read = _read.get(call)
        state = None if read is None else read.states.get(found)
        evidence = noticed(
            call,
            "GG109",
            _message,
            framework=_framework(found),
            direction="capture",
            object=f"{found.module}.{found.name}",
            type=None if state is None else state.kind,
        )
        if evidence is not None:
            reader = found.reader
            evidence.add(reader, f"`{reader.name}` reads `{found.module}.{found.name}`")


def _message(evidence: Noticed) -> str:
    return (
        f"`{evidence.details['object']}`, which `{evidence.first.name}` reads in "
        f"{evidence.backend} workers, has other values there than here: each worker has imported "
        "the module afresh, and what this process has changed since does not reach it."
    )


def _framework(found: Global) -> str:
    value = _value_of(found)
    tensors = _tensors_in(found.name, value)
    return next(("torch" if _is_torch(t) else "tensorflow" for t in tensors.values()), "torch")


def _read_by(function: Any) -> set[Global]:
    """The globals that a task's function, and the user's own functions that it calls, read by name.

    What a function that travels by value reads travels along with it, and is as it is here.
    """
    found: set[Global] = set()
    for current in _reached(function):
        by_name = locate.travels_by_name(current)
        loaded, stored = _globals_of(current.__code__)
        for names in loaded:
            value, module, name = _resolve(current.__globals__, names)
            if (
                module is not None
                and name not in stored
                and (by_name or module != current.__module__)
                and not isinstance(value, (type, types.FunctionType, functools.partial))
            ):
                found.add(Global(module, name, task_of(current)))
    return found


def _reached(function: Any) -> Iterator[types.FunctionType]:
    """A task's function and the user's own functions that it calls by their names, each once."""
    seen: set[int] = set()
    queue = [function]
    while queue and len(seen) < _FUNCTIONS:
        current = queue.pop()
        if not isinstance(current, types.FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        if not callsite.is_user_file(current.__code__.co_filename):
            continue
        yield current
        for names in _globals_of(current.__code__)[0]:
            value, _, _ = _resolve(current.__globals__, names)
            if isinstance(value, (types.FunctionType, functools.partial)):
                queue.append(function_of(value))


@functools.lru_cache(maxsize=1_000)
def _globals_of(code: types.CodeType) -> tuple[tuple[tuple[str, ...], ...], frozenset[str]]:
    """The globals that `code` loads, each with the attributes taken of it at once, and stores."""
    loaded: list[tuple[str, ...]] = []
    stored: set[str] = set()
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            attributes = itertools.takewhile(
                lambda i: i.opname in ("LOAD_ATTR", "LOAD_METHOD"), instructions[index + 1 :]
            )
            loaded.append((str(instruction.argval), *(str(i.argval) for i in attributes)))
        elif instruction.opname == "STORE_GLOBAL":
            stored.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_loaded, inner_stored = _globals_of(constant)
            loaded.extend(inner_loaded)
            stored |= inner_stored
    return tuple(dict.fromkeys(loaded)), frozenset(stored)


def _resolve(names_here: Any, names: tuple[str, ...]) -> tuple[Any, str | None, str]:
    """What `names` stand for, through modules: the value, and the module and name it stands in."""
    value = names_here.get(names[0])
    module, name = names_here.get("__name__"), names[0]
    for attribute in names[1:]:
        if not isinstance(value, types.ModuleType):
            break
        if not callsite.is_user_file(getattr(value, "__file__", None)):
            return None, None, name
        module, name = value.__name__, attribute
        value = vars(value).get(attribute)
    if isinstance(value, types.ModuleType) or value is None:
        return None, None, name
    return value, None if module == "__main__" else module, name


# -- in the worker -------------------------------------------------------------------------------

_first: dict[tuple[str, str], State | None] = {}
"""What each global was worth when it was first looked at in this worker: as the import made it."""


def begin(asked: Asked, process: bool) -> After | None:
    """Compare the globals of a fresh import with the parent's, before the tasks use them."""
    if asked.process == _PROCESS:
        return None  # forked: it has inherited them
    stale: list[Global] = []
    for found, there in asked.states.items():
        key = (found.module, found.name)
        if key not in _first:
            _first[key] = _state_of(found)
        first = _first[key]
        if first is None or first.digest == there.digest:
            continue
        now = _state_of(found)
        if now is None or now.digest == there.digest:
            continue
        if now.tensor and now.digest != first.digest:
            continue  # the tasks write to it: it is theirs
        stale.append(found)
    if not stale:
        return None

    def after(items: Any, results: Any, error: BaseException | None) -> list[Global] | None:
        kept = [found for found in stale if not _written(found, asked.states[found], items)]
        return kept or None

    return after


_SETTING = frozenset(("copy_", "load_state_dict", "load_weights", "set_weights"))


def _written(found: Global, there: State, items: Any) -> bool:
    """Whether the tasks that have just run wrote to a global, so that its old values do not count:
    they gave it the parent's values, or others that they came with, or it is a buffer of theirs."""
    first, now = _first[found.module, found.name], _state_of(found)
    if first is None or now is None or now.digest == there.digest:
        return True
    if now.digest == first.digest:
        return False
    return now.tensor or any(
        not _SETTING.isdisjoint(reached.__code__.co_names)
        for function in {id(item[0]): item[0] for item in items}.values()
        for reached in _reached(function_of(function))
    )


# -- what a global is worth ----------------------------------------------------------------------


def _value_of(found: Global) -> Any:
    module = sys.modules.get(found.module)
    return None if module is None else vars(module).get(found.name)


def _state_of(found: Global) -> State | None:
    """The state of a global in this process; None where it holds no tensor that can be compared."""
    value = _value_of(found)
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
    """The tensors in `value`, by their paths; not the whole of large structures."""
    if value is None or isinstance(value, (types.ModuleType, types.FunctionType, type)):
        return {}
    found: dict[str, Any] = {}
    kept: list[Any] = []

    def wanted(item: Any) -> bool:
        if _is_torch(item) or _is_tensorflow(item):
            kept.append(item)
            return True
        return False

    paths = locate.find([(name, value)], wanted, limit=_SEARCHED)
    for item in kept:
        found[paths[id(item)]] = item
    return found


def _is_torch(item: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(item, getattr(torch, "Tensor", ()))


def _is_tensorflow(item: Any) -> bool:
    kind = type(item)
    return kind.__module__.startswith("tensorflow.python") and hasattr(kind, "numpy")


def _bytes_of(tensor: Any) -> bytes | None:
    """Shape, dtype and values, or some of the values, of a tensor in this process's memory."""
    if _is_torch(tensor):
        from pytest_gradguard.runtime.frameworks import torch

        return torch.fingerprint(tensor, _WHOLE)
    try:
        array = tensor.numpy()
        values = array.reshape(-1)
        step = max(1, values.size // _WHOLE)
        return f"{array.shape}{array.dtype}".encode() + bytes(values[::step].tobytes())
    except Exception:  # a symbolic tensor, or a device that is gone: not known
        return None
