"""The tasks of workers: the user's own function, and where to search for its objects."""

from __future__ import annotations

import builtins
import contextvars
import functools
import itertools
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.attributes import plain_attribute

_NO_KEYWORDS: Mapping[str, Any] = types.MappingProxyType({})


class Task(NamedTuple):
    """A function that ran, or is to run, in a worker."""

    name: str
    path: str | None
    line: int | None


RUNNERS: set[types.CodeType] = set()
"""The guard's code that calls tasks in worker processes: its callees are tasks."""

_F = TypeVar("_F", bound=Callable[..., Any])


def runs_tasks(function: _F) -> _F:
    """Record that `function` calls tasks."""
    RUNNERS.add(cast(types.FunctionType, function).__code__)
    return function


GENERATOR = Task("the generator of tasks", None, None)
"""Stands for the caller's own generator, which joblib pulls from another thread."""


def roots_of(items: Any) -> list[tuple[str, Any]]:
    """The roots of a search through the tasks `items`; each path starts with its task's index."""
    return [
        root
        for index, (function, args, kwargs) in enumerate(items)
        for root in (
            (f"{index}|args", args),
            (f"{index}|kwargs", kwargs),
            (f"{index}|", function),
        )
    ]


def task_of(function: Any, args: Any = (), kwargs: Any = _NO_KEYWORDS) -> Task:
    """The name and place of the user's own function behind a task.

    The place of a library's function does not help the user. For such a task, the user's function
    is searched for in its closure and arguments.
    """
    function = function_of(function)
    written = _written(function)
    if type(written) is types.FunctionType and not is_the_users(written):
        function = _user_function_in([*_closed_over(written), args, kwargs]) or function
        written = _written(function)
    code = _code(written)
    name = _published(function) or plain_attribute(function, "__qualname__")
    if type(name) is not str:
        name = type(function).__qualname__
    path = None if code is None else _file_of(written, code)
    users = code is not None and callsite.is_user_file(path)
    return Task(
        name=name.rpartition("<locals>.")[2],
        path=path if users else None,
        line=code.co_firstlineno if code is not None and users else None,
    )


def _published(function: Any) -> str | None:
    """The name of a compiled function in its module, as ``torch.sum``; its own name may differ."""
    if type(function) is not types.BuiltinFunctionType or type(function.__module__) is not str:
        return None
    names = getattr(sys.modules.get(function.__module__), "__dict__", {})
    is_there = names.get(function.__name__) is function and names is not vars(builtins)
    return f"{function.__module__}.{function.__name__}" if is_there else None


def _written(function: Any) -> Any:
    """The user's code of `function`: itself, or the method that a call of it runs."""
    if _code(function) is None and not issubclass(type(function), type):
        return _called(type(function))
    return function


_SEARCHED = 200


def _user_function_in(items: list[Any]) -> Any:
    """The user's nearest function in containers, partials and closures; None without one."""
    for item in itertools.islice(items, _SEARCHED):  # it grows meanwhile
        kind = type(item)
        if issubclass(kind, (tuple, list)):
            items += item[:_SEARCHED]
        elif issubclass(kind, dict):
            items += itertools.islice(dict.values(item), _SEARCHED)
        elif issubclass(kind, functools.partial):
            items += (item.func, item.args, item.keywords)
        elif issubclass(kind, types.MethodType):
            items.append(item.__func__)
        elif is_the_users(item if _code(item) else plain_attribute(kind, "__call__")):
            return item
        elif issubclass(kind, types.FunctionType):
            items += _closed_over(item)
    return None


def _closed_over(function: types.FunctionType) -> list[Any]:
    cells = function.__closure__ or ()
    return [cell.cell_contents for cell in cells if cell != types.CellType()]


def _called(kind: type) -> Any:
    """The method that a call of such objects runs; for a model, the user's part of it."""
    called = plain_attribute(kind, "__call__")
    if _code(called) is None or is_the_users(called):
        return called
    for name in ("forward", "call"):
        written = plain_attribute(kind, name)
        if is_the_users(written):
            return written
    return called


def is_the_users(function: Any) -> bool:
    """Whether a function is written in Python, and by the user."""
    code = _code(function)
    return code is not None and callsite.is_user_file(_file_of(function, code))


def _file_of(function: Any, code: types.CodeType) -> str:
    namespace = plain_attribute(function, "__globals__")
    return callsite.written_in(code, namespace if type(namespace) is dict else {})


def function_of(function: Any) -> Any:
    """The user's own function inside the argument of `delayed`."""
    for _ in range(20):
        inner = _wrapped(function)
        if not callable(inner) or inner is function:
            break
        function = inner
    return function


ARGUMENT = re.compile(r"(?:args\[(?P<index>\d+)\]|kwargs\['(?P<key>\w+)'\])(?P<rest>.*)", re.S)
"""The path of an object in the arguments of a task."""


def parameter_of(function: Any, path: str) -> str | None:
    """The user function's parameter for the argument that `path` leads through."""
    argument = ARGUMENT.fullmatch(path)
    if argument is None or argument["index"] is None:
        return None if argument is None else argument["key"]
    index = int(argument["index"])
    for _ in range(20):
        if issubclass(type(function), functools.partial):
            index += len(function.args)
        index += issubclass(type(function), types.MethodType)
        inner = _wrapped(function)
        if not callable(inner) or inner is function:
            break
        function = inner
    code = _code(function)
    if code is None and not issubclass(type(function), type):
        code = _code(_called(type(function)))
        index += 1
    if code is None or index >= code.co_argcount:
        return None
    return code.co_varnames[index]


def _wrapped(function: Any) -> Any:
    """The function inside a partial, a bound method, a decorator or scikit-learn's wrapper."""
    if issubclass(type(function), functools.partial):
        runs = function.func
        if type(getattr(runs, "__self__", None)) is contextvars.Context and function.args:
            return function.args[0]  # `asyncio.to_thread` runs it in a copy of the context
        return runs
    if issubclass(type(function), types.MethodType):
        return function.__func__
    attributes = plain_attribute(function, "__dict__")
    if not issubclass(type(attributes), (dict, types.MappingProxyType)):
        return None
    inner = attributes.get("__wrapped__")
    return attributes.get("function") if inner is None else inner


def code_of(function: Any) -> types.CodeType | None:
    """The code of the user's own function inside the argument of `delayed`."""
    return _code(function_of(function))


def _code(function: Any) -> types.CodeType | None:
    code = plain_attribute(function, "__code__")
    return code if isinstance(code, types.CodeType) else None


_SETTING = frozenset(("seed", "manual_seed", "advance", "jumped", "jump", "setstate", "set_state"))


def reseeds(function: Any, also: frozenset[str] = frozenset()) -> bool:
    """Whether a task sets the state of random generators itself, `also` by methods so named."""
    return mentions(function, _SETTING | also)


def mentions(function: Any, names: frozenset[str]) -> bool:
    """Whether the code of a task, or of functions in it, uses one of `names`."""
    code = code_of(function)
    return code is not None and not names.isdisjoint(names_in(code))


def names_in(code: types.CodeType) -> set[str]:
    """The globals and attributes named in `code` and its nested functions."""
    found: set[str] = set()
    codes = [code]
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found
