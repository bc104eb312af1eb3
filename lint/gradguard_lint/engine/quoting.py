"""What a program writes where it gives something to a task: the names that reports call it by."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

LONG = 40
"""Expressions of more letters are not quoted."""


def written(node: ast.AST, first: int = 0) -> tuple[str, ...]:
    """The positional arguments of a call from `first` on, as the source writes them; "" for what
    is not quoted."""
    return quoted(node.args[first:]) if isinstance(node, ast.Call) else ()


def quoted(nodes: Iterable[ast.expr]) -> tuple[str, ...]:
    """Expressions, up to one that is unpacked, as the source writes them."""
    return tuple(map(text_of, _plain(nodes)))


def _plain(nodes: Iterable[ast.expr]) -> Iterable[ast.expr]:
    return itertools.takewhile(lambda item: not isinstance(item, ast.Starred), nodes)


def text_of(node: ast.expr) -> str:
    """`node` as the source writes it; "" where that is long, or no name for what it holds."""
    if isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set, *_COMPREHENSIONS)):
        return ""
    text = ast.unparse(node)
    return text if len(text) <= LONG else ""


def unpacked_text(node: ast.AST) -> str:
    """What `node`, a call, unpacks for its last arguments: one of these, as the source writes it;
    "" where it writes others beside them."""
    given = node.args if isinstance(node, ast.Call) else []
    several = sum(isinstance(item, ast.Starred) for item in given) > 1
    last = given[-1] if given and not several else None
    return item_text(last.value) if isinstance(last, ast.Starred) else ""


def item_text(node: ast.expr | None) -> str:
    """An item of what `node` iterates, as the source writes it; "" where it does not."""
    item = _item(node)
    if item is not None:
        return text_of(item)
    text = text_of(node) if isinstance(node, _NAMED) else ""
    return text and f"{text}[...]"


def items_text(call: ast.Call) -> tuple[str, ...]:
    """An item of each positional argument of a call but the first, as the source writes it."""
    return tuple(map(item_text, _plain(call.args[1:])))


def unpacked_texts(node: ast.expr | None, count: int) -> tuple[str, ...]:
    """The `count` parts of an item of what `node` iterates, as the source writes them."""
    item = _item(node)
    if isinstance(item, (ast.Tuple, ast.List)):
        return quoted(item.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
        return tuple(map(item_text, node.args))
    return tuple(part_text(node, str(number)) for number in range(count))


def part_text(node: ast.expr | None, place: str = "...") -> str:
    """The part at `place` of an item of what `node` iterates, as the source writes it."""
    item = _item(node) or node
    text = item_text(node) if isinstance(item, _NAMED) else ""
    return text and f"{text}[{place}]"


_NAMED = (ast.Name, ast.Attribute, ast.Subscript)

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def _item(node: ast.expr | None) -> ast.expr | None:
    """The expression that each item of what `node` iterates comes from, where there is one."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return node.elt
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) == 1:
        return node.elts[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _item(node.left) or _item(node.right)
    return None
