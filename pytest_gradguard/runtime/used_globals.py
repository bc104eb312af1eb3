"""The globals that a task's function uses, through the user's own functions that it calls.

Read off the code, which is not run: modules are looked through, and so are plain objects, of which
the code that uses them says which attributes count. Functions of installed packages are not looked
into.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime import callsite

_FUNCTIONS = 100
_DEPTH = 5
_UNWRAPPED = 20
_WRAPPED = ("__wrapped__", "function", "_python_function")  # the last: a tf.function
_MISSING = object()
_LOADS_VALUES = frozenset({"load_state_dict", "load_weights", "set_weights"})
"""Methods that give a model the values of another, as an assignment does."""

Chain = tuple[str, ...]


class Read(NamedTuple):
    """A global that a function uses.

    Attributes:
        module: the name of the module that holds it, or None.
        path: its name there, and the attributes that lead to what is used.
        names: the same, as the function names it.
        value: what it is now.
        reader: the function.
    """

    module: str | None
    path: Chain
    names: Chain
    value: Any
    reader: types.FunctionType


class Uses(NamedTuple):
    """What a task's function does with globals.

    Attributes:
        reads: what it uses.
        writes: the modules and paths that it gives a value of its own.
    """

    reads: list[Read]
    writes: set[tuple[str | None, Chain]]

    def own(self, read: Read) -> bool:
        """Whether the tasks write to what they read: it is theirs."""
        steps = range(1, len(read.path) + 1)
        return any((read.module, read.path[:step]) in self.writes for step in steps)


def uses_of(function: Any, *, classes: bool = False) -> Uses:
    """What `function`, and the user's own functions that it calls, do with globals.

    Args:
        function: what a task calls.
        classes: the methods of classes that it names count, too: all that it might call.
    """
    reads: dict[tuple[Any, ...], Read] = {}
    writes: set[tuple[str | None, Chain]] = set()
    seen: set[int] = set()
    queue = list(_functions_of(function, classes))
    while queue and len(seen) < _FUNCTIONS:
        current = queue.pop()
        if id(current) in seen or not callsite.is_user_file(current.__code__.co_filename):
            continue
        seen.add(id(current))
        module = current.__globals__.get("__name__")
        loaded, stored = _globals_in(current.__code__)
        for names in loaded:
            value = current.__globals__.get(names[0], _MISSING)
            for found in _follow(Read(module, names[:1], names[:1], value, current), names[1:]):
                if isinstance(found, types.FunctionType):
                    queue.append(found)
                    continue
                queue += _functions_of(found.value, classes)
                reads.setdefault((found.module, found.path, current), found)
        for names in stored:
            value = current.__globals__.get(names[0], _MISSING)
            place = Read(module, names[:1], names[:1], value, current)
            for found in _follow(place, names[1:-1]):
                if isinstance(found, Read):
                    end = names[-1:] if len(names) > 1 else ()
                    inside = isinstance(found.value, types.ModuleType)
                    held_by = found.value.__name__ if inside else found.module
                    writes.add((held_by, end if inside else found.path + end))
    return Uses(list(reads.values()), writes)


def held(value: Any, name: str) -> Any:
    """What `value` plainly holds under `name`, without running code of its own; else `MISSING`."""
    kind = value if isinstance(value, type) else type(value)
    raw = _of_class(kind, name)
    if isinstance(value, type):
        return _MISSING if hasattr(type(raw), "__get__") else raw
    if hasattr(type(raw), "__set__"):
        return _MISSING
    return _attribute(value, name)


def _attribute(value: Any, name: str) -> Any:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _MISSING
    return attributes.get(name, _MISSING) if type(attributes) is dict else _MISSING


def value_at(module: types.ModuleType, path: Chain) -> Any:
    """What stands at a `Read`'s path; None where there is nothing."""
    value = vars(module).get(path[0])
    for name in path[1:]:
        value = held(value, name)
    return None if value is _MISSING else value


def _of_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)


def _follow(read: Read, names: Chain, depth: int = _DEPTH) -> Iterator[Read | types.FunctionType]:
    """What `names`, attributes of what `read` stands for, lead to; and the methods on the way."""
    value = read.value
    for name in names:
        if isinstance(value, types.ModuleType):
            if not callsite.is_user_file(getattr(value, "__file__", None)):
                return
            read = read._replace(module=value.__name__, path=())
            inner = vars(value).get(name, _MISSING)
        else:
            inner = held(value, name)
        if inner is _MISSING:
            if isinstance(value, types.ModuleType):
                return
            method = _method(type(value), name)
            if method is not None and depth:
                yield method
                for chain in _attributes_in(method.__code__):
                    yield from _follow(read, chain, depth - 1)
                return
            break
        value = inner
        path, named = (*read.path, name), (*read.names, name)
        read = read._replace(path=path, names=named, value=value)
    if value is not _MISSING:
        yield read


def _method(kind: type, name: str) -> types.FunctionType | None:
    """The user's own code behind a method or property, whose first argument is the object."""
    raw = _of_class(kind, name)
    if isinstance(raw, property):
        raw = raw.fget
    if isinstance(raw, types.FunctionType) and raw.__code__.co_argcount:
        return raw if callsite.is_user_file(raw.__code__.co_filename) else None
    return None


def _functions_of(item: Any, classes: bool) -> Iterator[types.FunctionType]:
    """The plain functions behind a callable, decorators included; none where it is no callable."""
    if isinstance(item, type):
        if classes:
            yield from _methods(item)
        return
    for _ in range(_UNWRAPPED):
        if isinstance(item, functools.partial):
            item = item.func
            continue
        if isinstance(item, types.MethodType):
            yield from _called_on(type(item.__self__), item.__func__, set())
            item = item.__func__
            continue
        if isinstance(item, types.FunctionType):
            yield item
        inner = next((one for name in _WRAPPED if callable(one := _attribute(item, name))), None)
        if inner is None:
            break
        item = inner
    if not isinstance(item, (type, types.FunctionType)):
        call = _of_class(type(item), "__call__")
        if isinstance(call, types.FunctionType):
            yield call
            yield from _called_on(type(item), call, set())


def _methods(kind: type) -> Iterator[types.FunctionType]:
    """The user's own methods of a class."""
    for base in kind.__mro__:
        for name in list(vars(base)):
            method = _method(base, name)
            if method is not None:
                yield method


def _called_on(kind: type, method: Any, seen: set[str]) -> Iterator[types.FunctionType]:
    """The methods that a method of a class calls on its own object."""
    if not isinstance(method, types.FunctionType) or not method.__code__.co_argcount:
        return
    for chain in _attributes_in(method.__code__):
        if chain and chain[0] not in seen:
            seen.add(chain[0])
            inner = _method(kind, chain[0])
            if inner is not None:
                yield inner
                yield from _called_on(kind, inner, seen)


# -- what code says ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1_000)
def _globals_in(code: types.CodeType) -> tuple[tuple[Chain, ...], tuple[Chain, ...]]:
    """The globals that `code` loads, each with the attributes taken of it at once, and stores."""
    loaded: list[Chain] = []
    stored: list[Chain] = []
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.opname == "STORE_GLOBAL":
            stored.append((str(instruction.argval),))
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            chain, rest = _chain_at(instructions, index)
            names = (str(instruction.argval), *chain)
            if rest and rest[0].opname == "STORE_ATTR":
                stored.append((*names, str(rest[0].argval)))
            elif len(rest) > 1 and rest[1].opname == "STORE_SUBSCR":
                stored.append(names)
            elif chain and chain[-1] in _LOADS_VALUES:
                stored.append(names[:-1])
            else:
                loaded.append(names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_loaded, inner_stored = _globals_in(constant)
            loaded.extend(inner_loaded)
            stored.extend(inner_stored)
    return tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(stored))


@functools.lru_cache(maxsize=1_000)
def _attributes_in(code: types.CodeType, name: str | None = None) -> tuple[Chain, ...]:
    """The attributes that a method takes of its object; an empty chain where it uses it whole."""
    name = name or code.co_varnames[0]
    if "__class__" in code.co_freevars:  # by way of `super()`, too
        return ((),)
    chains: list[Chain] = []
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        argument = instruction.argval
        together = argument if isinstance(argument, tuple) else (argument,)
        if name not in together or "CLOSURE" in instruction.opname:
            continue
        if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            chain, rest = _chain_at(instructions, index)
            if together[-1] != name:
                return ((),)
            if chain or not (rest and rest[0].opname == "STORE_ATTR"):
                chains.append(chain)
        elif instruction.opname.startswith(("STORE_", "DELETE_")):
            return ((),)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and name in constant.co_freevars:
            chains.extend(_attributes_in(constant, name))
    return tuple(dict.fromkeys(chains))


def _chain_at(instructions: list[Any], index: int) -> tuple[Chain, list[Any]]:
    """The attributes taken of what the instruction at `index` loads, and the two that follow."""
    rest = itertools.islice(instructions, index + 1, None)
    taken = list(itertools.takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), rest))
    after = index + 1 + len(taken)
    return tuple(str(one.argval) for one in taken), instructions[after : after + 2]
