"""GG106: whether the program reads a `.grad` to update a tensor with it, without an optimizer.

Judged by the source, from the reading line: the gradient is followed through names, results and the
program's own functions, until it changes a tensor in place. Printing, comparing, clearing or
returning it unused updates nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.parsing import FUNCTIONS, scope_at, tree_of

_DEPTH = 4
"""Through how many functions a gradient is followed."""
_ROUNDS = 8
_LOADING = frozenset({"load_state_dict", "vector_to_parameters"})
_STORING = frozenset({"add", "append", "extend", "insert", "setdefault"})
_NO_UPDATE = frozenset({"requires_grad_", "detach_", "zero_", "retain_grad"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_ENDING = (ast.Continue, ast.Return, ast.Raise, ast.Break)


class _Kind(Enum):
    GRADIENT = "a gradient, or what was computed from it"
    CHOSEN = "tensors that were chosen by their gradients"


class _Called(NamedTuple):
    """A function of the program that gets a gradient: its name, and the arguments with it."""

    name: tuple[str, ...]
    arguments: tuple[int | str, ...]


class _Flow(NamedTuple):
    """Where a gradient goes in one function.

    Attributes:
        updates: it changes a tensor in place.
        returned: the function returns or yields it.
        calls: the functions that get it.
    """

    updates: bool = False
    returned: bool = False
    calls: tuple[_Called, ...] = ()


def updates(frame: types.FrameType) -> bool:
    """Whether the program itself updates a tensor with the gradient that `frame` reads now."""
    reader: str | None = None
    current: types.FrameType | None = frame
    for _ in range(_DEPTH):
        while current is not None and not callsite.is_users(current):
            current = current.f_back
        if current is None:
            return False
        flow = _flow_at(current.f_code, callsite.file_of(current), current.f_lineno, reader)
        if flow.updates or any(_updated_by(current, one, _DEPTH) for one in flow.calls):
            return True
        if not flow.returned:
            return False
        reader = current.f_code.co_name
        current = current.f_back
        while reader.startswith("<") and current is not None:  # read with the code around it
            reader, current = current.f_code.co_name, current.f_back
    return False


def _updated_by(frame: types.FrameType, called: _Called, depth: int) -> bool:
    """Whether a function that `frame` calls updates a tensor by its arguments."""
    return _function_updates(_resolved(frame, called.name), called.arguments, depth)


def _function_updates(function: Any, arguments: tuple[int | str, ...], depth: int) -> bool:
    bound = isinstance(function, types.MethodType)
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not depth or type(function) is not types.FunctionType:
        return False
    if not callsite.is_users_function(function):
        return False
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][bound:]
    given = tuple(
        names[one] if isinstance(one, int) and one < len(names) else str(one) for one in arguments
    )
    flow = _flow_into(code, callsite.written_in(code, function.__globals__), given)
    return flow.updates or any(
        _function_updates(function.__globals__.get(one.name[0]), one.arguments, depth - 1)
        for one in flow.calls
        if len(one.name) == 1
    )


def _resolved(frame: types.FrameType, name: tuple[str, ...]) -> Any:
    value = dict(callsite.local_names(frame)).get(name[0], frame.f_globals.get(name[0]))
    for one in name[1:]:
        found = inspect.getattr_static(type(value), one, None)
        if not isinstance(found, types.FunctionType):
            return None
        value = types.MethodType(found, value)
    return value


# -- one function ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _flow_at(code: types.CodeType, path: str, line: int, reader: str | None) -> _Flow:
    """Follow what is read at `line`: `.grad`, or the result of the function called `reader`."""
    tree = tree_of(path)
    if tree is None:
        return _Flow()
    flow = _Following(scope_at(tree, line), line)
    for node in flow.nodes:
        is_at_line = _first_line(node) <= line <= (getattr(node, "end_lineno", None) or 0)
        if is_at_line and (_is_read(node) if reader is None else _is_call_of(node, reader)):
            flow.begin_at(node)
    return flow.follow()


@functools.lru_cache(maxsize=256)
def _flow_into(code: types.CodeType, path: str, names: tuple[str, ...]) -> _Flow:
    """Follow the arguments called `names` in a function."""
    tree = tree_of(path)
    scope = None if tree is None else scope_at(tree, code.co_firstlineno)
    if not isinstance(scope, FUNCTIONS):
        return _Flow()
    flow = _Following(scope, 0)
    flow.names.update(dict.fromkeys(names, _Kind.GRADIENT))
    return flow.follow()


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, or of a module, without those of functions inside it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            stack += ast.iter_child_nodes(node)


def _first_line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _is_read(node: ast.AST) -> bool:
    """Whether an expression reads the gradient of something."""
    return _is_gradient(node) and isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))


def _is_gradient(node: ast.AST) -> bool:
    """Whether an expression is the gradient of something, read or assigned."""
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value == "grad"
    )


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _name_of(node.func)[-1:] == (name,)


def _name_of(node: ast.AST) -> tuple[str, ...]:
    """`a.b.c` as its parts; empty for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    before = _name_of(node.value) if isinstance(node, ast.Attribute) else ()
    return (*before, node.attr) if before and isinstance(node, ast.Attribute) else ()


def _root(node: ast.AST) -> ast.AST:
    """The expression whose attributes, items and method results `node` is made of."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)) and not _is_read(node):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node


class _Following:
    """Follows a gradient through one function.

    Args:
        scope: the function, or the module.
        line: where it is read; code before that line does not count.
    """

    def __init__(self, scope: ast.AST, line: int) -> None:
        self.nodes = list(_nodes_of(scope))
        self.names: dict[str, _Kind] = {}
        self._sources: dict[ast.AST, _Kind] = {}
        self._unpacked: list[set[str]] = []
        """Names that got parts of one value: which of them is the gradient is unknown."""
        self._line = line
        self._parents = {
            child: node for node in [scope, *self.nodes] for child in ast.iter_child_nodes(node)
        }

    def begin_at(self, read: ast.AST) -> None:
        """The expression `read` yields the gradient."""
        self._sources[read] = _Kind.GRADIENT
        child, node = read, self._parents.get(read)
        asked = False
        while node is not None and not isinstance(node, ast.stmt):
            if isinstance(node, ast.Compare):
                asked = True
            elif isinstance(node, ast.IfExp) and child is node.test:
                self._sources[node] = _Kind.GRADIENT
                asked = False
            elif isinstance(node, ast.comprehension) and child in node.ifs:
                child, node = node, self._parents[node]
                self._sources[node] = _Kind.CHOSEN
                self._add_equal_reads(read, [node])
                return
            elif not isinstance(node, (ast.BoolOp, ast.UnaryOp, ast.NamedExpr)) and not asked:
                return
            child, node = node, self._parents.get(node)
        if isinstance(node, ast.If) and child is node.test:
            self._add_equal_reads(read, [*node.body, *node.orelse])
            if any(block and isinstance(block[-1], _ENDING) for block in (node.body, node.orelse)):
                self._add_equal_reads(read, self._following(node))

    def _following(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements after `statement` in its block."""
        for _, block in ast.iter_fields(self._parents[statement]):
            if isinstance(block, list) and statement in block:
                return block[block.index(statement) + 1 :]
        return []

    def _add_equal_reads(self, read: ast.AST, inside: list[Any]) -> None:
        """Treat equal reads inside these nodes as the gradient, too."""
        text = ast.unparse(read)
        for node in (inner for one in inside for inner in ast.walk(one)):
            if _is_read(node) and ast.unparse(node) == text:
                self._sources[node] = _Kind.GRADIENT

    def follow(self) -> _Flow:
        """Follow the gradient to its uses."""
        for _ in range(_ROUNDS):
            known = len(self.names)
            for node in self.nodes:
                self._bind(node)
            if len(self.names) == known:
                break
        later = [node for node in self.nodes if _first_line(node) >= self._line]
        calls = [one for node in later if (one := self._call(node)) is not None]
        returned = any(
            self._kind(node.value) is not None
            for node in later
            if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) and node.value is not None
        )
        return _Flow(any(map(self._updates, later)), returned, tuple(calls))

    # -- what an expression holds

    def _kind(self, node: ast.AST) -> _Kind | None:
        """What an expression holds of the gradient."""
        if node in self._sources:
            if self._sources[node] is _Kind.CHOSEN and isinstance(node, _COMPREHENSIONS):
                parts = [getattr(node, name, None) for name in ("elt", "value")]
                if any(one is not None and self._kind(one) is _Kind.GRADIENT for one in parts):
                    return _Kind.GRADIENT
            return self._sources[node]
        if isinstance(node, ast.Compare):
            return None
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if _is_read(node):
            owner = node.value if isinstance(node, ast.Attribute) else node.args[0]  # type: ignore[attr-defined]
            return _Kind.GRADIENT if self._kind(owner) is _Kind.CHOSEN else None
        if isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                self._assign(generator.target, generator.iter)
        kinds = {self._kind(child) for child in ast.iter_child_nodes(node)}
        return next((one for one in _Kind if one in kinds), None)

    def _bind(self, node: ast.AST) -> None:
        """Record which names get the gradient."""
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and not self._is_update(node):
                for target in targets:
                    self._assign(target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assign(node.target, node.iter)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for given in node.args if node.func.attr in _STORING else ():
                self._assign(node.func.value, given)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts: list[ast.AST] = [value] * len(target.elts)
            if isinstance(value, ast.Call) and _name_of(value.func) == ("enumerate",):
                parts = [ast.Constant(0), *value.args[:1]]
            elif isinstance(value, ast.Call) and _name_of(value.func) == ("zip",):
                parts = list(value.args)
            elif isinstance(value, (ast.Tuple, ast.List)):
                parts = list(value.elts)
            else:
                self._unpacked.append({one.id for one in target.elts if isinstance(one, ast.Name)})
            for one, part in zip(target.elts, parts):  # noqa: B905
                self._assign(one, part)
            return
        kind = self._kind(value)
        root = _root(target)
        if kind is not None and isinstance(root, ast.Name) and root.id != "self":
            self.names.setdefault(root.id, kind)

    # -- how it is used

    def _holds(self, *nodes: ast.AST) -> bool:
        return any(self._kind(node) is _Kind.GRADIENT for node in nodes)

    def _is_own(self, changed: ast.AST, given: Iterable[ast.AST]) -> bool:
        """Whether `changed` is itself the gradient, or was computed from it."""
        if any(_is_gradient(inner) for inner in ast.walk(changed)):
            return True
        name = getattr(_root(changed), "id", None)
        if self.names.get(name or "") is not _Kind.GRADIENT:
            return False
        used = {getattr(inner, "id", name) for one in given for inner in ast.walk(one)} - {name}
        return not any(name in names and used & names for names in self._unpacked)

    def _updates(self, node: ast.AST) -> bool:
        """Whether `node` changes a tensor by the gradient."""
        if isinstance(node, (ast.AugAssign, ast.Assign)):
            return self._is_update(node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
            return False
        name = _name_of(node.func)[-1:] or (getattr(node.func, "attr", ""),)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name[0] in _LOADING:
            return self._holds(*given)
        if not name[0].endswith("_") or name[0].endswith("__") or name[0] in _NO_UPDATE:
            return False
        if not isinstance(node.func, ast.Attribute):
            return False
        changed = node.func.value
        if name[0].startswith("_foreach_"):
            changed = given.pop(0) if given else changed
        return self._holds(*given) and not self._is_own(changed, given)

    def _is_update(self, node: ast.AST) -> bool:
        """Whether an assignment changes a tensor by the gradient.

        A running total does not count: the target has a gradient itself, or is a loop variable.
        """
        if isinstance(node, ast.Assign):
            return self._holds(node.value) and any(
                isinstance(one, ast.Attribute)
                and one.attr == "data"
                and not self._is_own(one, [node.value])
                for one in node.targets
            )
        if not isinstance(node, ast.AugAssign) or not self._holds(node.value):
            return False
        target = node.target
        if self._is_own(target, [node.value]):
            return False
        if isinstance(target, ast.Attribute) and target.attr == "data":
            return True
        text = ast.unparse(target)
        loops = (one.target for one in self.nodes if isinstance(one, (ast.For, ast.AsyncFor)))
        looped = {name for one in loops for name in map(ast.unparse, ast.walk(one))}
        owners = (one.value for one in self.nodes if _is_read(one) and hasattr(one, "value"))
        return text in looped or text in map(ast.unparse, owners)

    def _call(self, node: ast.AST) -> _Called | None:
        if not isinstance(node, ast.Call) or _is_read(node):
            return None
        name = _name_of(node.func)
        given: list[int | str] = [i for i, one in enumerate(node.args) if self._holds(one)]
        given += [one.arg for one in node.keywords if one.arg and self._holds(one.value)]
        return _Called(name, tuple(given)) if name and given else None
