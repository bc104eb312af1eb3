"""Calls of stubs: where the program makes them, and the source of each argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.values import Frame, Items, Table, Value
from gradguard_lint.engine.displays import display_of
from gradguard_lint.engine.ports import Args
from pytest_gradguard.records import fields


@fields
class Caller:
    """The program's call of a stub.

    Attributes:
        frame: the scope of the call.
        node: the expression.
        args: its arguments.
    """

    frame: Frame
    node: ast.AST
    args: Args

    def source(self, value: Value) -> tuple[ast.expr, bool, frozenset[str]] | None:
        """The program's expression for `value`, whether that is all of it, and the names bound by a
        comprehension around it; None if there is none.

        Values are identified by object identity, as each argument has a value of its own. Mutable
        containers are a new value at each read, and have an `ident` instead.
        """
        for expression, given in self._written():
            if _is_same(given, value):
                return expression, True, frozenset()
            for atom in given.atoms:
                if isinstance(atom, Items) and any(it is value for it in atom.items or ()):
                    display, names = display_of(self.frame, expression)
                    is_value = [it is value for it in atom.items or ()]
                    return *_item_of(display, expression, is_value), names
                if isinstance(atom, Table):
                    keys = [key for key, it in atom.entries if it is value]
                    if keys:
                        display, names = display_of(self.frame, expression)
                        return *_entry_of(display, expression, keys[0]), names
        return None

    def _written(self) -> Iterator[tuple[ast.expr, Value]]:
        """The arguments with their expressions."""
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


def _is_same(given: Value, value: Value) -> bool:
    if given is value:
        return True
    held = [atom.ident for atom in value.atoms if isinstance(atom, (Items, Table))]
    return (
        bool(held) and all(held) and held == [getattr(atom, "ident", None) for atom in given.atoms]
    )


def _entry_of(display: ast.expr, expression: ast.expr, key: object) -> tuple[ast.expr, bool]:
    """The value of `key` in `display`, the dict for `expression`."""
    if isinstance(display, ast.Dict):
        for name, value in zip(display.keys, display.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                return value, True
    if isinstance(display, ast.Call) and not any(it.arg is None for it in display.keywords):
        for keyword in display.keywords:
            if keyword.arg == key:
                return keyword.value, True
    return expression, False


def _item_of(
    display: ast.expr, expression: ast.expr, is_value: list[bool]
) -> tuple[ast.expr, bool]:
    """The item in `display`, the sequence for `expression`, for which `is_value` holds."""
    written = display.elts if isinstance(display, (ast.Tuple, ast.List)) else []
    if len(written) == len(is_value) and not any(isinstance(it, ast.Starred) for it in written):
        return written[is_value.index(True)], True
    return expression, False
