"""Which expressions are certainly torch tensors, whatever way the program takes.

The analysis says what a value is if all goes well: a loop is run, a layer gives a tensor. A repair
that calls a method of the value has to know more: that no way leaves the ``0`` or ``None`` from
before the loop, and that the layer is none of those that give several tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from gradguard_lint.domain.effects import Program, TaskRun
from gradguard_lint.domain.values import Atom, Bound, Function, Instance, Site, Tensor, Thing, Value
from gradguard_lint.fixes.later import way_to
from gradguard_lint.fixes.task_functions import function_of
from gradguard_lint.fixes.written import bindings, dotted
from gradguard_lint.models.torch import (
    GIVE_ONE,
    GIVE_THEMSELVES,
    LAYERS,
    METHODS_GIVE_ONE,
    ONE_OF_ALL,
    POOLS,
    TENSOR_ATTRIBUTES,
    WITH_FUNCTIONS,
)
from gradguard_lint.reading.source import Module
from pytest_gradguard.records import Record, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    Kind: TypeAlias = "_Known | _Object | None"
    """What an expression certainly is; None: it may be anything."""

DEPTH = 6
"""How far names and calls of the project's functions are followed."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHERS = (*_DEFINITIONS, ast.ClassDef)
_SCOPES = (*_OTHERS, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PATTERNS = (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)


@record
class _Object(Record):
    """An instance of a class of the project."""

    cls: ast.ClassDef
    module: Module


@record
class _Known(Record):
    """A tensor, or a layer: what gives a tensor when it is called."""

    name: str


_TENSOR = _Known("tensor")
_LAYER = _Known("layer")


class _Scope:
    """Where an expression stands: a function or a module, and what its parameters are."""

    def __init__(
        self,
        module: Module,
        node: ast.AST,
        kinds: Sequence[Kind] = (),
        names: Mapping[str, Kind] = {},
    ) -> None:
        self.module = module
        self.node = node
        self.given = dict(names)
        if isinstance(node, _DEFINITIONS):
            parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
            self.given.update(zip(parameters, kinds, strict=False))


def certain(program: Program, function: Function, expressions: Sequence[ast.expr]) -> bool:
    """Whether all of `expressions`, in the worker's `function`, are tensors whenever they are
    returned by a task of the program."""
    scopes = [
        _scope_of(task, function)
        for call in program.calls
        for task in call.tasks
        if function_of(task) == function
    ]
    return bool(scopes) and all(
        _kind(node, scope, DEPTH) == _TENSOR for scope in scopes for node in expressions
    )


def _scope_of(task: TaskRun, function: Function) -> _Scope:
    """The function as `task` calls it."""
    site, atoms = task.task.site, list(task.task.function.atoms)
    if not all(isinstance(atom, (Function, Bound)) for atom in atoms):
        return _Scope(function.module, function.node)
    first = [_of_atom(atom.receiver) for atom in atoms[:1] if isinstance(atom, Bound)]
    written: Sequence[ast.expr | None] = [None] * len(task.task.args)
    if isinstance(site.node, ast.Call) and len(site.node.args) == len(written):
        written = site.node.args
    around = _Scope(site.module, _function_around(site))
    kinds = [
        _of_value(value) or (_kind(node, around, DEPTH) if node is not None else None)
        for value, node in zip(task.task.args, written, strict=True)
    ]
    names = {name: _of_value(value) for name, value in task.task.keywords}
    return _Scope(function.module, function.node, [*first, *kinds], names)


def _function_around(site: Site) -> ast.AST:
    way = way_to(site.module.tree, site.node)
    return next((node for node in reversed(way) if isinstance(node, _DEFINITIONS)), way[0])


def _of_value(value: Value) -> Kind:
    return _same(_of_atom(atom) for atom in value.atoms)


def _of_atom(atom: Atom) -> Kind:
    if isinstance(atom, Tensor):
        return _TENSOR if atom.framework == "torch" else None
    if isinstance(atom, Thing):
        package, _, name = atom.name.rpartition(".")
        return _LAYER if package == "torch.nn" and name in LAYERS else None
    return _Object(atom.cls.node, atom.cls.module) if isinstance(atom, Instance) else None


def _same(kinds: Iterable[Kind]) -> Kind:
    """What all of `kinds` are."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else None


# -- expressions -----------------------------------------------------------------------------------


def _kind(node: ast.expr, scope: _Scope, depth: int) -> Kind:
    """What `node` certainly is in `scope`."""
    if depth <= 0:
        return None
    if isinstance(node, ast.Name):
        return _of_name(node, scope, depth - 1)
    if isinstance(node, ast.BinOp):  # a tensor makes one of whatever is beside it
        sides = [_kind(node.left, scope, depth)]
        if not isinstance(node.op, ast.Mod):  # which may fill a text
            sides.append(_kind(node.right, scope, depth))
        return _TENSOR if _TENSOR in sides else None
    if isinstance(node, (ast.UnaryOp, ast.Subscript)):
        base = _kind(node.value if isinstance(node, ast.Subscript) else node.operand, scope, depth)
        return _TENSOR if base == _TENSOR and not _is_not(node) else None
    if isinstance(node, ast.NamedExpr):
        return _kind(node.value, scope, depth)
    if isinstance(node, ast.IfExp):
        return _same((_kind(node.body, scope, depth), _kind(node.orelse, scope, depth)))
    if isinstance(node, ast.Attribute):
        base = _kind(node.value, scope, depth)
        if isinstance(base, _Object):
            return _of_attribute(base, node.attr, depth - 1)
        return _TENSOR if base == _TENSOR and node.attr in TENSOR_ATTRIBUTES else None
    return _of_call(node, scope, depth) if isinstance(node, ast.Call) else None


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _of_call(node: ast.Call, scope: _Scope, depth: int) -> Kind:
    full = dotted(scope.module, node.func)
    package, _, name = full.rpartition(".")
    several = any(item.arg is None or item.arg == "return_indices" for item in node.keywords)
    if package in WITH_FUNCTIONS:
        return _TENSOR if name in GIVE_ONE or _is_whole(name, node, 1) else None
    if full in ("torch.nn.Parameter", "torch.autograd.Variable"):
        return _TENSOR
    if package == "torch.nn" and name == "Sequential":
        last = node.args[-1] if node.args else node
        return None if isinstance(last, ast.Starred) or last is node else _kind(last, scope, depth)
    if package == "torch.nn":
        return _LAYER if name in LAYERS or (name in POOLS and not several) else None
    if full == "copy.deepcopy" and len(node.args) == 1:
        return _kind(node.args[0], scope, depth)
    if isinstance(node.func, ast.Attribute):
        base = _kind(node.func.value, scope, depth)
        if base == _TENSOR:
            name = node.func.attr
            known = name in GIVE_ONE or name in METHODS_GIVE_ONE or _is_whole(name, node, 0)
            return _TENSOR if known else None
        if base is not None and node.func.attr in GIVE_THEMSELVES:
            return base
        if isinstance(base, _Object) and _find(base, node.func.attr) is not None:
            return _of_method(base, node.func.attr, node, scope, depth)
    called = _kind(node.func, scope, depth)
    if isinstance(called, _Object):
        method = "forward" if _find(called, "forward") is not None else "__call__"
        return _of_method(called, method, node, scope, depth)
    if called == _LAYER:
        return _TENSOR
    found = [
        item
        for item in scope.module.tree.body
        if isinstance(item, _OTHERS)
        and isinstance(node.func, ast.Name)
        and item.name == node.func.id
    ]
    if len(found) != 1 or bindings(scope.module.tree, found[0].name):
        return None
    if isinstance(found[0], ast.ClassDef):
        return _Object(found[0], scope.module)
    return _result(found[0], scope.module, _arguments(node, scope, depth), node, scope, depth)


def _is_whole(name: str, node: ast.Call, given: int) -> bool:
    return name in ONE_OF_ALL and len(node.args) == given and not node.keywords


def _arguments(node: ast.Call, scope: _Scope, depth: int) -> list[Kind]:
    if any(isinstance(item, ast.Starred) for item in node.args):
        return []
    return [_kind(item, scope, depth) for item in node.args]


def _result(
    function: ast.AST,
    module: Module,
    kinds: Sequence[Kind],
    node: ast.Call,
    scope: _Scope,
    depth: int,
) -> Kind:
    """What the call `node` of a function gives whose first parameters are `kinds`."""
    if not isinstance(function, ast.FunctionDef) or not _ends(function.body):
        return None
    if any(
        not dotted(module, _called(item)).startswith("torch.") for item in function.decorator_list
    ):
        return None
    names = {item.arg: _kind(item.value, scope, depth) for item in node.keywords if item.arg}
    inside = _Scope(module, function, kinds, names)
    own = list(_own(function))
    depth -= 1
    if any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in own):
        return None
    return _same(
        _kind(item.value, inside, depth) if item.value is not None else None
        for item in own
        if isinstance(item, ast.Return)
    )


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of `function` without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own(child)


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Whether a block is left by ``return`` or ``raise``, and never at its end."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body) and _ends(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return _ends(last.body)
    return isinstance(last, (ast.Return, ast.Raise))


# -- objects ---------------------------------------------------------------------------------------


def _find(owner: _Object, name: str) -> ast.FunctionDef | None:
    """The method `name` of an object, in its class itself."""
    found = [item for item in owner.cls.body if isinstance(item, ast.FunctionDef)]
    return next((item for item in found if item.name == name), None)


def _of_method(owner: _Object, name: str, node: ast.Call, scope: _Scope, depth: int) -> Kind:
    method = _find(owner, name)
    if method is None or method.decorator_list:
        return None
    kinds = [owner, *_arguments(node, scope, depth)]
    return _result(method, owner.module, kinds, node, scope, depth)


def _of_attribute(owner: _Object, name: str, depth: int) -> Kind:
    """What the attribute `name` of an object is, by all that its class gives it."""
    found: list[Kind] = []
    for method in owner.cls.body:
        if not isinstance(method, ast.FunctionDef) or not method.args.args:
            continue
        own = method.args.args[0].arg
        inside = _Scope(owner.module, method, [owner])
        for item in ast.walk(method):
            if not isinstance(item, ast.Attribute) or isinstance(item.ctx, ast.Load):
                continue
            if item.attr == name and isinstance(item.value, ast.Name) and item.value.id == own:
                found.append(_assigned(method, item, inside, depth))
    return _same(found)


def _assigned(method: ast.AST, target: ast.expr, scope: _Scope, depth: int) -> Kind:
    """What `target` is given by the plain assignment that it stands in."""
    for item in ast.walk(method):
        if isinstance(item, ast.Assign) and target in item.targets:
            return _kind(item.value, scope, depth)
    return None


# -- names -----------------------------------------------------------------------------------------


def _of_name(node: ast.Name, scope: _Scope, depth: int) -> Kind:
    """What a name is where `node` reads it."""
    if isinstance(scope.node, ast.Module) or not _is_local(node.id, scope):
        tree = scope.module.tree
        values = [
            item.value
            for item in tree.body
            if isinstance(item, ast.Assign)
            and any(
                isinstance(target, ast.Name) and target.id == node.id for target in item.targets
            )
        ]
        if len(values) != 1 or bindings(tree, node.id) != 1:
            return None
        return _kind(values[0], _Scope(scope.module, tree), depth)
    kinds: list[Kind] = []
    way = way_to(scope.node, node)
    for outer, inner in reversed(list(pairwise(way))):
        if isinstance(outer, _COMPREHENSIONS) and _stores(outer, node.id):
            return None
        blocks = [block for block in _blocks(outer) if block and inner is not outer]
        for block in blocks:
            if inner not in block:
                # a branch beside it is not run; what may be run before it in a loop or `try` is
                if not isinstance(outer, (ast.If, *_SCOPES)) and inner in _statements(outer):
                    kinds += _bound(block, node.id, scope, depth)[1]
                continue
            sure, found = _bound(block[: block.index(inner)], node.id, scope, depth)
            kinds += found
            if sure:
                return _same(kinds)
            if isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
                kinds += _bound(block, node.id, scope, depth)[1]
        if isinstance(outer, (ast.For, ast.AsyncFor)) and _stores(outer.target, node.id):
            return None
        if isinstance(outer, (ast.With, ast.AsyncWith)) and any(
            item.optional_vars is not None and _stores(item.optional_vars, node.id)
            for item in outer.items
        ):
            return None
    return _same([*kinds, scope.given.get(node.id)])


def _is_local(name: str, scope: _Scope) -> bool:
    if isinstance(scope.node, _DEFINITIONS):
        arguments = scope.node.args
        extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra)
        if any(item.arg == name for item in every):
            return True
    return _stores(scope.node, name)


def _stores(tree: ast.AST, name: str) -> bool:
    """Whether something in `tree` may give `name` a value, or take it away."""
    return name in _stored(tree)


@lru_cache(maxsize=4096)
def _stored(tree: ast.AST) -> frozenset[str | None]:
    """The names that something in `tree` may give a value, or take it away from."""
    found: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        elif isinstance(node, _OTHERS):
            if node is not tree:
                found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, _PATTERNS):
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping):
            found.add(node.rest)
    return frozenset(found)


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _statements(node: ast.AST) -> list[ast.AST]:
    return [item for block in _blocks(node) for item in block]


def _bound(
    block: Sequence[ast.AST], name: str, scope: _Scope, depth: int
) -> tuple[bool, list[Kind]]:
    """Whether a block certainly gives `name` a value, and what the last ones may be."""
    kinds: list[Kind] = []
    for statement in reversed(block):
        if not _stores(statement, name):
            continue
        sure, found = _bound_by(statement, name, scope, depth)
        kinds += found
        if sure:
            return True, kinds
    return False, kinds


def _bound_by(statement: ast.AST, name: str, scope: _Scope, depth: int) -> tuple[bool, list[Kind]]:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True, [_kind(statement.value, scope, depth)]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        # a tensor makes one of whatever it is added to; and stays one
        given = _kind(statement.value, scope, depth)
        return given == _TENSOR, [_TENSOR] if given == _TENSOR else []
    if isinstance(statement, (ast.With, ast.AsyncWith)) and not any(
        item.optional_vars is not None and _stores(item.optional_vars, name)
        for item in statement.items
    ):
        return _bound(statement.body, name, scope, depth)
    if isinstance(statement, ast.If):
        ways = [
            _bound(way, name, scope, depth)
            for way in (statement.body, statement.orelse)
            if not (way and _ends(way))
        ]
        return all(sure for sure, _ in ways), [kind for _, kinds in ways for kind in kinds]
    if isinstance(statement, (ast.For, ast.While)) and not (
        isinstance(statement, ast.For) and _stores(statement.target, name)
    ):
        ways = [_bound(way, name, scope, depth) for way in (statement.body, statement.orelse)]
        return False, [kind for _, kinds in ways for kind in kinds]
    return False, [None]
