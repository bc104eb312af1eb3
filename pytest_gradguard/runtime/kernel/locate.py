"""Finds the path of an object: a slow search, used only when something has been found.

It follows the same edges as pickling (containers, attributes, captures of functions) through plain
`__dict__` and slots, so that no code of the user runs, and stops after a fixed number of objects.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_gradguard.runtime.kernel import callsite, travelling
from pytest_gradguard.runtime.kernel.code_names import globals_in

_ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, bytearray, type(None), type, range, slice}
    | {types.ModuleType, types.BuiltinFunctionType, types.CodeType, type(Ellipsis)}
)
_PLAIN_DICTS = frozenset({dict, OrderedDict})
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_LIMIT = 20_000
_ESTIMATOR_METHODS = ("fit", "forward", "predict", "train", "step", "partial_fit")
WRAPPERS: dict[type, Callable[[Any], Any]] = {}
"""Containers by which a framework replaces the program's, and a function for the original."""

CAPTURES = (".closure[", ".defaults[", ".globals[", ".partial.")
"""Parts of the paths of objects that a function captures, or has bound in advance."""

_TORCH_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})


def find(
    roots: Iterable[tuple[str, Any]],
    wanted: Callable[[Any], bool],
    *,
    deep: bool = True,
    limit: int = _LIMIT,
    wide: int | None = None,
) -> dict[int, str]:
    """The shortest path to every wanted object under `roots`, by the object's id.

    Args:
        roots: pairs of a path and the object at it.
        wanted: whether an object is searched for; such objects are not searched themselves.
        deep: search attributes and functions, too; otherwise only plain containers.
        limit: how many objects to search.
        wide: containers with more entries are not searched; by default all are.

    Returns:
        Paths such as ``args[0].encoder.weight`` by `id`.
    """
    found: dict[int, str] = {}
    seen: set[int] = set()
    queue = deque(roots)
    while queue and limit > 0:
        path, item = queue.popleft()
        kind = type(item)
        if kind in _ATOMS or id(item) in seen:
            continue
        limit -= 1
        seen.add(id(item))
        if wanted(item):
            found[id(item)] = path
        elif wide is None or not issubclass(kind, _CONTAINERS) or len(item) <= wide:
            try:
                queue.extend(_inside(path, item, kind, deep))
            except RuntimeError:  # another thread has changed it in the meantime
                pass
    return found


def is_record(item: Any) -> bool:
    """Whether `item` is a plain record (a dataclass instance without an estimator's methods)."""
    kind = type(item)
    return kind is types.SimpleNamespace or (
        dataclasses.is_dataclass(kind)
        and not any(callable(getattr(kind, method, None)) for method in _ESTIMATOR_METHODS)
    )


def inside(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """The direct contents of `item`, whose path is `path`: pairs of a path and an object."""
    return _inside(path, item, type(item), True)


def _inside(path: str, item: Any, kind: type, deep: bool) -> Iterator[tuple[str, Any]]:
    if kind in WRAPPERS:
        item = WRAPPERS[kind](item)
        kind = type(item)
    if issubclass(kind, dict):
        for key, value in list(dict.items(item)):
            yield f"{path}[{_key(key)}]", value
    elif issubclass(kind, tuple):
        fields = getattr(kind, "_fields", ())
        names = fields if isinstance(fields, tuple) else ()
        for index, value in enumerate(tuple.__iter__(item)):
            named = index < len(names)
            yield (f"{path}.{names[index]}" if named else f"{path}[{index}]"), value
    elif issubclass(kind, list):
        for index, value in enumerate([*list.__iter__(item)]):
            yield f"{path}[{index}]", value
    elif issubclass(kind, deque):
        for index, value in enumerate([*deque.__iter__(item)]):
            yield f"{path}[{index}]", value
    elif issubclass(kind, (set, frozenset)):
        for value in list(item):
            yield f"{path}{{…}}", value
    elif is_record(item):
        yield from _attributes(path, item, kind)
    if not deep:
        return
    if issubclass(kind, types.FunctionType):
        yield from _captures(path, item)
    elif issubclass(kind, types.MethodType):
        yield f"{path}.self", item.__self__
        yield path, item.__func__
    elif issubclass(kind, functools.partial):
        yield path, item.func
        for index, value in enumerate(item.args):
            yield f"{path}.partial.args[{index}]", value
        for key, value in item.keywords.items():
            yield f"{path}.partial.keywords[{key!r}]", value
    elif not issubclass(kind, type):
        yield from _attributes(path, item, kind)


def _attributes(path: str, item: Any, kind: type) -> Iterator[tuple[str, Any]]:
    try:
        values = object.__getattribute__(item, "__dict__")
    except AttributeError:
        values = {}
    if isinstance(values, dict):
        for name, value in list(values.items()):
            kind_of_value = type(value)
            if kind_of_value in _ATOMS or (kind_of_value in _PLAIN_DICTS and not value):
                continue  # a module has more than ten empty tables
            if name in _TORCH_REGISTRIES and isinstance(value, dict):
                for inner, registered in list(value.items()):
                    yield f"{path}.{inner}", registered
            else:
                yield f"{path}.{name}", value
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                yield f"{path}.{name}", object.__getattribute__(item, name)
            except AttributeError:
                pass


def _captures(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The parts of a function that is pickled by value: closure, defaults, globals."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{path}.closure[{name!r}]", cell.cell_contents
        except ValueError:  # an empty cell
            pass
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"{path}.defaults[{index}]", value
    for key, value in (function.__kwdefaults__ or {}).items():
        yield f"{path}.defaults[{key!r}]", value
    if travelling.by_name(function):  # its globals are not pickled
        return
    for name in globals_in(code).names:
        if name in function.__globals__:
            yield f"{path}.globals[{name!r}]", function.__globals__[name]
    for name, value in function.__dict__.items():
        yield f"{path}.{name}", value


def _key(key: Any) -> str:
    """A dict key as shown in a path; only plain keys, so that no `__repr__` runs."""
    if type(key) in (str, int, float, bool, bytes):
        return repr(key)
    return f"<{type(key).__name__}>"


def names_in(
    wanted: Mapping[int, tuple[Any, str]], frame: types.FrameType | None
) -> dict[int, str]:
    """The program's names for objects in `frame`; otherwise the paths that they were shipped by.

    Args:
        wanted: the objects and these paths, by id.
        frame: where the program runs, if known.
    """
    found: dict[int, str] = {}
    if frame is not None:
        found = find(callsite.local_names(frame), lambda item: id(item) in wanted, limit=5_000)
    return {
        identity: found.get(identity, path or "a tensor of the call")
        for identity, (_, path) in wanted.items()
    }
