"""Calls of stubs: where the program makes them, and which expression gives which argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.values import Frame, Items, Table, Value
from gradguard_lint.engine.ports import Args
from pytest_gradguard.records import fields


@fields
class Caller:
    """Where the program calls a stub, and with which arguments.

    Attributes:
        frame: the scope of the call.
        node: the expression.
        args: its arguments.
    """

    frame: Frame
    node: ast.AST
    args: Args

    def source(self, value: Value) -> tuple[ast.expr, bool] | None:
        """The expression of the program that `value` comes from, and whether that is the whole of
        it; None where it comes from elsewhere.

        Values are told apart by their identity: each argument has one of its own.
        """
        for expression, given in self._written():
            if given is value:
                return expression, True
            for atom in given.atoms:
                if isinstance(atom, Items) and any(it is value for it in atom.items or ()):
                    return _item_of(expression, [it is value for it in atom.items or ()])
                if isinstance(atom, Table) and any(it is value for _, it in atom.entries):
                    return expression, False
        return None

    def _written(self) -> Iterator[tuple[ast.expr, Value]]:
        """The arguments with the expressions that give them."""
        if not isinstance(self.node, ast.Call):
            return
        positional = self.args.positional
        stars = [isinstance(it, ast.Starred) for it in self.node.args]
        more = len(positional) - len(stars)
        place = 0
        for expression, is_star in zip(self.node.args, stars, strict=True):
            count = more + 1 if is_star and stars.count(True) == 1 else 1
            for value in positional[place : place + count]:
                yield expression, value
            place += count
        for keyword in self.node.keywords:
            if keyword.arg in self.args.keywords:
                yield keyword.value, self.args.keywords[keyword.arg]


def _item_of(expression: ast.expr, is_value: list[bool]) -> tuple[ast.expr, bool]:
    """The part of `expression`, a sequence, that gives the item which `is_value`."""
    written = expression.elts if isinstance(expression, (ast.Tuple, ast.List)) else []
    if len(written) == len(is_value) and not any(isinstance(it, ast.Starred) for it in written):
        return written[is_value.index(True)], True
    return expression, False
