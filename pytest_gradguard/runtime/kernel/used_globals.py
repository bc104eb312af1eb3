"""The globals that a task's function uses, also through the user's functions that it calls.

Found from the code, which is not run: modules are searched, and so are plain objects, whose
relevant attributes follow from the code that uses them. Functions of installed packages are not
searched.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import callsite, travelling
from pytest_gradguard.runtime.kernel.code_names import (
    LOADS_VALUES,
    Chain,
    Import,
    absolute_name,
    attributes_in,
    globals_in,
    imports_in,
)
from pytest_gradguard.runtime.kernel.tasks import code_of

_FUNCTIONS = 100
_DEPTH = 5
_UNWRAPPED = 20
_WRAPPED = ("__wrapped__", "function", "_python_function")  # the last: a tf.function
_MISSING = object()
_TELLS_NO_VALUES = frozenset(
    {"device", "dim", "dtype", "get_shape", "name", "ndim", "numel", "requires_grad", "shape"}
    | {"size", "trainable"}
)
"""Attributes of tensors, variables and models that do not depend on their numbers."""


class Read(NamedTuple):
    """A global that a function uses.

    Attributes:
        module: the name of the module that holds it, or None.
        path: its name there, and the attributes that are used.
        names: the path as the function names it.
        value: its current value.
        reader: the function.
        given: it is assigned, not read.
        by_name: a worker that is not forked imports the global: the function, or the module that it
            names, is pickled by name.
    """

    module: str | None
    path: Chain
    names: Chain
    value: Any
    reader: Any  # a function: mypy would take it for a method
    given: bool = False
    by_name: bool = False


class Uses(NamedTuple):
    """How a task's function uses globals.

    Attributes:
        reads: the globals that it uses.
        writes: the modules and paths that it assigns.
        functions: the user's own functions that it runs, including itself.
    """

    reads: list[Read]
    writes: set[tuple[str | None, Chain]]
    functions: list[types.FunctionType]

    def own(self, read: Read) -> bool:
        """Whether the tasks assign what they read, so that it is their own."""
        steps = range(1, len(read.path) + 1)
        return any((read.module, read.path[:step]) in self.writes for step in steps)


def uses_of(function: Any, *, classes: bool = False) -> Uses:
    """How `function`, and the user's own functions that it calls, use globals.

    Args:
        function: the task's function.
        classes: include the methods of classes that it names: all that it might call.
    """
    reads: dict[tuple[Any, ...], Read] = {}
    writes: set[tuple[str | None, Chain]] = set()
    seen: dict[int, types.FunctionType] = {}
    queue = list(_functions_of(function, classes, by_name=False))
    while queue and len(seen) < _FUNCTIONS:
        current, by_name = queue.pop()
        if id(current) in seen or not callsite.is_users_function(current):
            continue
        seen[id(current)] = current
        for one in _used_by(current, by_name):
            if isinstance(one, types.FunctionType):
                queue.append((one, by_name or travelling.by_name(one)))
            elif one.given:
                writes.add((one.module, one.path))
            else:
                queue += _functions_of(one.value, classes, by_name=one.by_name)
                reads.setdefault((one.module, one.path, current), one)
    return Uses(list(reads.values()), writes, list(seen.values()))


def _used_by(function: types.FunctionType, by_name: bool) -> Iterator[Any]:
    """The globals that the code of `function` names, and the methods on the way.

    Args:
        function: the function.
        by_name: workers import it.
    """
    code = globals_in(function.__code__)
    module = function.__globals__.get("__name__")

    def follow(names: Chain, given: bool = False) -> Iterator[Any]:
        value = function.__globals__.get(names[0], _MISSING)
        read = Read(module, names[:1], names[:1], value, function, by_name=by_name)
        return _follow(read, names[1:], given)

    for names in code.loaded:
        yield from follow(names)
    for names in code.stored:
        yield from follow(names, given=True)
    for callee, names in code.handed:
        if any(isinstance(one, Read) and _fills(one.value) for one in follow(callee)):
            yield from follow(names, given=True)
    for bound in imports_in(function.__code__):
        uses = attributes_in(bound.code, bound.local)
        for read in _bound_by(bound, function):
            for chain in uses.loaded:
                yield from _follow(read, chain)
            for chain in uses.stored:
                yield from _follow(read, chain, given=True)


def _bound_by(bound: Import, function: types.FunctionType) -> Iterator[Read]:
    """The name that an import inside `function` binds, if this process has imported it, too."""
    package = function.__globals__.get("__package__")
    module = sys.modules.get(absolute_name(bound.module, bound.level, package))
    if module is None or not callsite.is_user_file(getattr(module, "__file__", None)):
        return
    read = Read(None, (bound.local,), (bound.local,), module, function, by_name=True)
    if bound.name is None:
        yield read
    elif bound.name in vars(module):
        value = vars(module)[bound.name]
        yield read._replace(module=module.__name__, path=(bound.name,), value=value)


def _is(item: Any, kinds: Any) -> bool:
    """As `isinstance`, without asking the `__class__` of a proxy of the program."""
    return issubclass(type(item), kinds)


def held(value: Any, name: str) -> Any:
    """The plain attribute `name` of `value`, without running its code; otherwise `MISSING`."""
    kind = value if _is(value, type) else type(value)
    raw = _of_class(kind, name)
    if _is(value, type):
        return _MISSING if hasattr(type(raw), "__get__") else raw
    if hasattr(type(raw), "__set__"):
        return _MISSING
    own = _attribute(value, name)
    return raw if own is _MISSING and not hasattr(type(raw), "__get__") else own


def _attribute(value: Any, name: str) -> Any:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _MISSING
    return attributes.get(name, _MISSING) if type(attributes) is dict else _MISSING


def value_at(module: types.ModuleType, path: Chain) -> Any:
    """The value at a `Read`'s path; None without one."""
    return value_in(vars(module), path)


def value_in(names: dict[str, Any], path: Chain) -> Any:
    """The value at a `Read`'s path in the globals of a function."""
    value = names.get(path[0])
    for name in path[1:]:
        value = held(value, name)
    return None if value is _MISSING else value


def _of_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)


def _follow(
    read: Read, names: Chain, given: bool = False, depth: int = _DEPTH
) -> Iterator[Read | types.FunctionType]:
    """Follow `names`, attributes of the value of `read`; yields the end, and methods on the way.

    Args:
        read: where to begin.
        names: the attributes.
        given: the last one is assigned.
        depth: how many methods may call one another.
    """
    for index, name in enumerate(names):
        value = read.value
        last = given and index == len(names) - 1
        path = (*read.path, name)
        if _is(value, types.ModuleType):
            if not callsite.is_user_file(getattr(value, "__file__", None)):
                return
            read = read._replace(module=value.__name__, by_name=True)
            path = (name,)
            inner = vars(value).get(name, _MISSING)
        else:
            inner = held(value, name)
        if inner is _MISSING and not last:
            method = _method(type(value), name)
            if _is(value, types.ModuleType) or (name in _TELLS_NO_VALUES and method is None):
                return
            if method is not None and depth:
                yield method
                uses = attributes_in(method.__code__)
                for chain in uses.loaded:
                    yield from _follow(read, chain, False, depth - 1)
                for chain in uses.stored:
                    yield from _follow(read, chain, True, depth - 1)
                return
            given = given or name in LOADS_VALUES
            break
        read = read._replace(path=path, names=(*read.names, name), value=inner)
    if given or read.value is not _MISSING:
        yield read._replace(given=given)


def _method(kind: type, name: str) -> types.FunctionType | None:
    """The user's own code behind a method or property, whose first argument is the object."""
    raw = _of_class(kind, name)
    if isinstance(raw, property):
        raw = raw.fget
    if isinstance(raw, types.FunctionType) and raw.__code__.co_argcount:
        return raw if callsite.is_users_function(raw) else None
    return None


def _fills(function: Any) -> bool:
    """Whether a function of the user copies values of another model into its first argument."""
    if not _is(function, types.FunctionType) or not function.__code__.co_argcount:
        return False
    chains = attributes_in(function.__code__).loaded
    return any(len(chain) == 1 and chain[0] in LOADS_VALUES for chain in chains)


def _functions_of(
    item: Any, classes: bool, *, by_name: bool
) -> Iterator[tuple[types.FunctionType, bool]]:
    """The plain functions behind a callable, decorators included; none if it is not callable.

    Args:
        item: the callable.
        classes: include the methods of a class.
        by_name: workers import the holder of `item`.

    Yields:
        Each function, and whether workers import it.
    """
    if _is(item, type):
        for method in _methods(item) if classes else ():
            yield method, by_name or travelling.by_name(method)
        return
    for _ in range(_UNWRAPPED):
        if _is(item, functools.partial):
            item = item.func
            continue
        if _is(item, types.MethodType):
            for method in called_on(type(item.__self__), item.__func__, set()):
                yield method, by_name or travelling.by_name(method)
            item = item.__func__
            continue
        if _is(item, types.FunctionType):
            by_name = by_name or travelling.by_name(item)  # including the function that it wraps
            yield item, by_name
        inner = next((one for name in _WRAPPED if callable(one := _attribute(item, name))), None)
        if inner is None:
            break
        item = inner
    if not _is(item, (type, types.FunctionType)):
        call = _of_class(type(item), "__call__")
        if isinstance(call, types.FunctionType):
            for method in (call, *called_on(type(item), call, set())):
                yield method, by_name or travelling.by_name(method)


def _methods(kind: type) -> Iterator[types.FunctionType]:
    """The user's own methods of a class."""
    for base in kind.__mro__:
        for name in list(vars(base)):
            method = _method(base, name)
            if method is not None:
                yield method


def called_on(kind: type, method: Any, seen: set[str]) -> Iterator[types.FunctionType]:
    """The methods that a method of a class calls on its own object."""
    if not isinstance(method, types.FunctionType) or not method.__code__.co_argcount:
        return
    for chain in attributes_in(method.__code__).loaded:
        if chain and chain[0] not in seen:
            seen.add(chain[0])
            inner = _method(kind, chain[0])
            if inner is not None:
                yield inner
                yield from called_on(kind, inner, seen)


GLOBAL = ".globals["
"""Part of the paths of globals that a task uses."""
_places: dict[Any, list[tuple[dict[str, Any], Chain]]] = {}
"""The globals that a task uses, by its code or class."""
_MANY = 200
_HOLD_NOTHING = (type, types.FunctionType, types.ModuleType)


def values_used_by(items: Any) -> list[tuple[str, Any]]:
    """The globals that the tasks `items` use, as roots of a search: paths and values."""
    functions = {id(function): (index, function) for index, (function, _, _) in enumerate(items)}
    roots = []
    for index, function in functions.values():
        code = code_of(function) or type(function)
        places = _places.get(code)
        if places is None:
            if len(_places) >= _MANY:
                _places.clear()
            places = _places[code] = _places_in(function)
        for names, path in places:
            roots.append((f"{index}|{GLOBAL}{'.'.join(path)!r}]", value_in(names, path)))
    return roots


def _places_in(function: Any) -> list[tuple[dict[str, Any], Chain]]:
    """The places of the globals that a task uses; their values may change later."""
    found = []
    for read in uses_of(function).reads:
        names = read.reader.__globals__  # a spawned worker's main program is no module's own
        if read.module != names.get("__name__"):
            names = vars(sys.modules[str(read.module)])
        if not issubclass(type(read.value), _HOLD_NOTHING):
            found.append((names, read.path))
    return found
