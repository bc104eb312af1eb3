"""Mutations: small changes of one function, each of which a test ought to notice.

Code of modules and classes, decorators and defaults run as a module is imported: they have none.
"""

from __future__ import annotations

import ast
import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PROBE = "_mutant_is_reached"
"""The builtin that instrumented code calls with the number of each mutation that it reaches."""

Span = tuple[str, int, int, int, int]
"""A node of a file: its type, and where it begins and ends."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SMALL = 10
"""Integers up to this one are changed by one."""


class Mutation(NamedTuple):
    """One change of one file.

    Attributes:
        path: the file.
        span: the node that is replaced.
        variant: which of the changes of that node it is.
        shown: the code before and after, for a reader.
    """

    path: str
    span: Span
    variant: int
    shown: str

    @property
    def line(self) -> int:
        """The line at which it begins."""
        return self.span[1]


def mutations(path: Path, text: str) -> list[Mutation]:
    """All mutations of the functions of a file, in its order."""
    found = []
    for node in _mutable(ast.parse(text)):
        for variant, change in enumerate(_changes(node)):
            shown = f"{_brief(node)}  ->  {_brief(change)}"
            found.append(Mutation(str(path), _span(node), variant, shown))
    return sorted(found, key=lambda it: (it.span[1:], it.variant))


def mutations_in(folder: Path) -> list[Mutation]:
    """All mutations of the modules in a folder; stubs are no modules."""
    return [
        mutation
        for path in sorted(folder.rglob("*.py"))
        if "stubs" not in path.parts
        for mutation in mutations(path, path.read_text(encoding="utf-8"))
    ]


def drawn(found: list[Mutation], number: int, seed: int) -> list[Mutation]:
    """A sample at even distances: it is spread over the files, and over each of them."""
    number = min(number, len(found))
    start = random.Random(seed).random()
    return [found[int((start + k) * len(found) / number)] for k in range(number)]


def mutated(text: str, mutation: Mutation) -> ast.Module:
    """A file with one mutation."""
    tree = _Replacing(mutation).visit(ast.parse(text))
    return ast.fix_missing_locations(tree)  # type: ignore[no-any-return]


def instrumented(text: str, numbered: Iterable[tuple[int, Mutation]]) -> ast.Module:
    """A file that calls `PROBE` with a number right before the statement of that mutation."""
    return ast.fix_missing_locations(_Probing(numbered).visit(ast.parse(text)))  # type: ignore[no-any-return]


def _span(node: ast.AST) -> Span:
    at: Any = node
    return (type(node).__name__, at.lineno, at.col_offset, at.end_lineno, at.end_col_offset)


def _brief(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def _mutable(node: ast.AST, inside: bool = False) -> Iterator[ast.stmt | ast.expr]:
    """The statements and expressions of functions that run as these are called."""
    if inside and isinstance(node, (ast.stmt, ast.expr)):
        yield node
    outermost = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inside
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "format_spec") or (outermost and name != "body"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _mutable(part, inside or outermost)


# -- the changes of one node -----------------------------------------------------------------------


def _changes(node: ast.AST) -> list[ast.AST]:
    """What may stand in place of `node`."""
    make = _MAKERS.get(type(node))
    return [ast.copy_location(copy.copy(new), node) for new in make(node)] if make else []


def _without_an_operand(node: ast.BoolOp) -> Iterator[ast.AST]:
    for number in range(len(node.values)):
        left = node.values[:number] + node.values[number + 1 :]
        yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _with_another_test(node: Any) -> Iterator[ast.AST]:
    if not isinstance(node.test, ast.Compare):  # which changes itself
        yield _with(node, test=_negated(node.test))


def _with_another_condition(node: Any) -> Iterator[ast.AST]:
    for number, generator in enumerate(node.generators):
        for place, test in enumerate(generator.ifs):
            if not isinstance(test, ast.Compare):
                changed = copy.deepcopy(node.generators)
                changed[number].ifs[place] = _negated(test)
                yield _with(node, generators=changed)


def _with_another_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    if len(node.ops) == 1:
        yield _with(node, ops=[_COMPARISONS[type(node.ops[0])]()])


def _with_another_result(node: ast.Return) -> Iterator[ast.AST]:
    if node.value is None:
        return
    value = getattr(node.value, "value", ...)
    if isinstance(value, bool):
        yield ast.Return(ast.Constant(not value))
    elif value is not None:
        yield ast.Return(ast.Constant(None))


def _without_a_call(node: ast.Expr) -> Iterator[ast.AST]:
    if isinstance(node.value, (ast.Call, ast.Await)):
        yield ast.Pass()


def _without_an_assignment(node: Any) -> Iterator[ast.AST]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets):
        yield ast.Pass()


def _with_another_operator(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, (ast.Add, ast.Sub)):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield _with(node, op=other)


def _with_another_number(node: ast.Constant) -> Iterator[ast.AST]:
    if type(node.value) is int and 0 <= node.value <= _SMALL:
        yield ast.Constant(node.value + 1)


_MAKERS: dict[type[ast.AST], Callable[[Any], Iterator[ast.AST]]] = {
    ast.BoolOp: _without_an_operand,
    ast.If: _with_another_test,
    ast.While: _with_another_test,
    ast.IfExp: _with_another_test,
    ast.ListComp: _with_another_condition,
    ast.SetComp: _with_another_condition,
    ast.DictComp: _with_another_condition,
    ast.GeneratorExp: _with_another_condition,
    ast.Compare: _with_another_comparison,
    ast.Return: _with_another_result,
    ast.Expr: _without_a_call,
    ast.Assign: _without_an_assignment,
    ast.AugAssign: _without_an_assignment,
    ast.BinOp: _with_another_operator,
    ast.Constant: _with_another_number,
}


def _with(node: ast.AST, **changed: Any) -> ast.AST:
    """A copy of `node` with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **changed})


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


# -- a changed file --------------------------------------------------------------------------------


class _Replacing(ast.NodeTransformer):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.stmt, ast.expr)) and _span(node) == self._mutation.span:
            return _changes(node)[self._mutation.variant]
        return self.generic_visit(node)


class _Probing(ast.NodeTransformer):
    def __init__(self, numbered: Iterable[tuple[int, Mutation]]) -> None:
        self._numbers: defaultdict[Span, list[int]] = defaultdict(list)
        for number, mutation in numbered:
            self._numbers[mutation.span].append(number)
        self._reached: list[int] = []
        """The numbers inside of the statement that is visited."""

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.stmt):
            if isinstance(node, ast.expr):
                self._reached += self._numbers.get(_span(node), ())
            return self.generic_visit(node)
        around, self._reached = self._reached, [*self._numbers.get(_span(node), ())]
        self.generic_visit(node)
        reached, self._reached = self._reached, around
        return [*(_probe(number, node) for number in reached), node] if reached else node


def _probe(number: int, node: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(number)], [])
    probe = ast.Expr(call)
    for part in (probe, call):
        ast.copy_location(part, node)
    return probe
