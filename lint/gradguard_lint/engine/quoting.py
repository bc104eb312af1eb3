"""Source text of task arguments, as reports quote it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

LONG = 40
"""The length up to which expressions are quoted."""


def written(node: ast.AST, first: int = 0) -> tuple[str, ...]:
    """The source text of positional arguments from `first` on; "" if not quotable."""
    return quoted(node.args[first:]) if isinstance(node, ast.Call) else ()


def quoted(nodes: Iterable[ast.expr]) -> tuple[str, ...]:
    """The source text of expressions, up to a starred one."""
    return tuple(map(text_of, _plain(nodes)))


def _plain(nodes: Iterable[ast.expr]) -> Iterable[ast.expr]:
    return itertools.takewhile(lambda item: not isinstance(item, ast.Starred), nodes)


def text_of(node: ast.expr) -> str:
    """The source text of `node`; "" if it is long or a literal container."""
    if isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set, *_COMPREHENSIONS)):
        return ""
    text = ast.unparse(node)
    return text if len(text) <= LONG else ""


def unpacked_text(node: ast.AST) -> str:
    """The source text of an item of the only, final starred argument of a call; else ""."""
    given = node.args if isinstance(node, ast.Call) else []
    several = sum(isinstance(item, ast.Starred) for item in given) > 1
    last = given[-1] if given and not several else None
    return item_text(last.value) if isinstance(last, ast.Starred) else ""


def item_text(node: ast.expr | None) -> str:
    """The source text of an item of the iterable `node`; else ""."""
    item = _item(node)
    if item is not None:
        return text_of(item)
    text = text_of(node) if isinstance(node, _NAMED) else ""
    return text and f"{text}[...]"


def items_text(call: ast.Call) -> tuple[str, ...]:
    """`item_text` of each positional argument of a call but the first."""
    return tuple(map(item_text, _plain(call.args[1:])))


def unpacked_texts(node: ast.expr | None, count: int) -> tuple[str, ...]:
    """The source text of the `count` parts of an item of the iterable `node`."""
    item = _item(node)
    if isinstance(item, (ast.Tuple, ast.List)):
        return quoted(item.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
        return tuple(map(item_text, node.args))
    return tuple(part_text(node, str(number)) for number in range(count))


def part_text(node: ast.expr | None, place: str = "...") -> str:
    """The source text of the part at `place` of an item of the iterable `node`."""
    item = _item(node) or node
    text = item_text(node) if isinstance(item, _NAMED) else ""
    return text and f"{text}[{place}]"


_NAMED = (ast.Name, ast.Attribute, ast.Subscript)

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def _item(node: ast.expr | None) -> ast.expr | None:
    """The expression of each item of the iterable `node`, if there is one."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return node.elt
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) == 1:
        return node.elts[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _item(node.left) or _item(node.right)
    return None
