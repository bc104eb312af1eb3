"""The program's own names for shipped objects: its expression, or the parameter.

The source of the call is read only once something was found.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.parsing import scope_at, tree_of
from pytest_gradguard.runtime.kernel.tasks import ARGUMENT

_CAPTURED = r"(?:closure|globals)\['(?P<name>\w+)'\](?P<rest>.*)"
_CAPTURE = re.compile(rf"(?:partial\.(?:args\[\d+\]\.)?)*{_CAPTURED}", re.S)
_CAPTURED_INSIDE = re.compile(rf".*\.{_CAPTURED}", re.S)
RAY_PUT = "ray.put"
"""The task that `ray.put` counts as."""
QUEUE_PUT = "Queue.put"
"""The task that the `put` of a queue counts as."""
_PUTS = {RAY_PUT: ("put",), QUEUE_PUT: ("put", "put_nowait")}
_LONGEST = 40
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)


class Quoted(NamedTuple):
    """An object's `name`, and its role for the task, if that adds information."""

    name: str
    role: str

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


def quoted(site: Site | None, path: str, parameter: str | None, task: str) -> Quoted:
    """The name of the object at `path` in the arguments of `task`, from a call at `site`.

    Args:
        site: the line of the call.
        path: such as ``args[0].weight``, ``closure['scale']`` or ``result``.
        parameter: the task's parameter for it, if known.
        task: the name of the task's function.
    """
    if path == "result":
        return Quoted(f"the result of `{task}`", "")
    if path.startswith("result"):
        return Quoted(f"`{path}` of `{task}`", "")
    argument = ARGUMENT.fullmatch(path)
    if argument is None:
        captured = _CAPTURE.fullmatch(path)
        name = path if captured is None else captured["name"] + captured["rest"]
        return Quoted(f"`{name}`", f"captured by `{task}`")
    inside = _CAPTURED_INSIDE.fullmatch(argument["rest"])
    if inside is not None:
        name = inside["name"] + inside["rest"]
        return Quoted(f"`{name}`", f"captured by a function that `{task}` is given")
    key = int(argument["index"]) if argument["key"] is None else argument["key"]
    written = None if site is None else _expression(site, task, key, argument["rest"])
    rest = argument["rest"]
    if written is not None:
        role = "an argument" if parameter is None else f"parameter `{parameter}`"
        return Quoted(f"`{written}`", f"{role} of `{task}`")
    if parameter is None:
        place = f"argument {key + 1}" if isinstance(key, int) else f"argument `{key}`"
        return Quoted(f"{f'`{rest}` of ' if rest else ''}{place} of `{task}`", "")
    return Quoted(f"parameter `{parameter}{rest}` of `{task}`", "")


def _expression(site: Site, task: str, key: int | str, rest: str) -> str | None:
    """The program's own expression of an argument, if the source at `site` is unambiguous."""
    source = "".join(linecache.getlines(site.path))
    tree = tree_of(site.path)
    if tree is None:
        return None
    name = task if task in _PUTS else task.rpartition(".")[2]
    for scope in _scopes(tree, site.line):
        found = {
            (ast.get_source_segment(source, inner) or "", isinstance(inner, _SIMPLE), left)
            for node in ast.walk(scope)
            if isinstance(node, ast.Call) and (given := _argument(node, name, key)) is not None
            for inner, left in (_inside(given, rest),)
        }
        if not found:
            continue
        text, simple, rest = found.pop()
        if found or "\n" in text or not 0 < len(text) <= _LONGEST:
            return None
        return text + rest if simple or not rest else f"({text}){rest}"
    return None


_ELEMENT = re.compile(r"\[(\d+)\](.*)", re.S)


def _inside(given: ast.expr, rest: str) -> tuple[ast.expr, str]:
    """The expression at the path `rest` inside another one, and the remaining path."""
    while isinstance(given, (ast.Tuple, ast.List)) and (element := _ELEMENT.fullmatch(rest)):
        items = given.elts[: int(element[1]) + 1]
        if len(items) <= int(element[1]) or any(isinstance(one, ast.Starred) for one in items):
            break
        given, rest = items[-1], element[2]
    return given, rest


def _scopes(tree: ast.Module, line: int) -> Iterator[ast.AST]:
    """The innermost statement at `line`, and then the function around it."""
    around = scope_at(tree, line)
    statements = (node for node in ast.walk(around) if isinstance(node, ast.stmt))
    at_line = [one for one in statements if one.lineno <= line <= (one.end_lineno or 0)]
    yield from at_line[-1:]
    if at_line or around is not tree:  # a decorator's line is in no statement inside
        yield around


def _argument(call: ast.Call, task: str, key: int | str) -> ast.expr | None:
    """The expression that `call` passes to the function `task` as that argument, if any."""
    handed = _handed(call, task)
    if handed is None:
        return None
    args, keywords = handed
    if isinstance(key, str):
        return next((one.value for one in keywords if one.arg == key), None)
    if key >= len(args) or any(isinstance(one, ast.Starred) for one in args[: key + 1]):
        return None
    return args[key]


def _handed(call: ast.Call, task: str) -> tuple[list[ast.expr], list[ast.keyword]] | None:
    """The arguments that a call such as `delayed(task)(…)`, `submit(task, …)`,
    `apply_async(task, (…,))`, `task.remote(…)`, `Process(target=task, args=(…,))` or
    `spawn(task, args=(…,))` passes to the task."""
    if isinstance(call.func, ast.Call):
        is_made_of = _place_of(task, call.func) is not None
        return (call.args, call.keywords) if is_made_of else None
    method = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if task in _PUTS:
        return (call.args, call.keywords) if method in _PUTS[task] else None
    if method == "remote" and _is_named(getattr(call.func, "value", call), task):
        return call.args, call.keywords
    place = _place_of(task, call)
    if place is None:
        return None
    rest = call.args[place + 1 :]
    if method in _SPREADING:
        return rest, call.keywords
    if method in _PACKING or place < 0:
        named = [keyword.value for keyword in call.keywords if keyword.arg == "args"]
        return _elements(named[0] if named else rest[0] if rest else None), []
    return None


_SPREADING = ("submit", "launch")
"""Methods whose arguments are the task's, after the task."""
_PACKING = (
    *("apply", "apply_async", "spawn", "start_processes"),
    *("launch_agent", "notebook_launcher", "debug_launcher"),
)
"""Functions that take the task's arguments as one tuple, after the task."""
_TASK_NAMES = ("target", "fn", "func", "function", "entrypoint")


def _place_of(task: str, call: ast.Call) -> int | None:
    """The number of the argument of `call` that names `task`; -1: a keyword does."""
    for place, given in enumerate(call.args):
        if _is_named(given, task):
            return place
    keywords = (one.value for one in call.keywords if one.arg in _TASK_NAMES)
    return -1 if any(_is_named(given, task) for given in keywords) else None


def _elements(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def _is_named(node: ast.expr, task: str) -> bool:
    if isinstance(node, ast.Lambda):
        return task == "<lambda>"
    return task == getattr(node, "attr", getattr(node, "id", None))
