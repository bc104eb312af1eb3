"""Template methods: base class methods that call overrides."""

from __future__ import annotations

import ast
from collections.abc import Set

from gradguard_lint.domain.values import Class
from gradguard_lint.engine.tree import descend, last_name

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.reading.source import Module

    FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
"""The statements that define a function."""


def calling_its_own(cls: Class) -> list[tuple[Module, FunctionNode]]:
    """Inherited project methods that call methods of `cls` itself, with their modules."""
    own = {it.name for it in cls.node.body if isinstance(it, FUNCTIONS)} - {"__init__"}
    methods = [
        (above.module, it)
        for above in cls.above
        for it in above.node.body
        if isinstance(it, FUNCTIONS)
    ]
    inherited = [(home, it) for home, it in methods if it.name not in own]
    found: list[tuple[Module, FunctionNode]] = []
    while True:
        calling = [it for it in inherited if own and it not in found and _asks_itself(it[1], own)]
        if not calling:
            return found
        found += calling
        own |= {it.name for _, it in calling}


def lacks_an_attribute(cls: Class) -> bool:
    """Whether `cls` is abstract: it uses attributes or abstract methods that it doesn't define."""
    if any(getattr(base, "name", "").rpartition(".")[2] not in _BASES for base in cls.outside()):
        return False
    nodes = [part for it in (cls, *cls.above) for part in descend(it.node)]
    own = [it for it in nodes if isinstance(it, ast.Attribute) and last_name(it.value) == "self"]
    has = {it.attr for it in own if isinstance(it.ctx, ast.Store)}
    has.update(it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store))
    for part in (*reversed(cls.above), cls):
        for method in part.node.body:
            if isinstance(method, FUNCTIONS):
                (has.discard if _is_left_open(method) else has.add)(method.name)
    return not {it.attr for it in own} <= has | _OF_OBJECTS


def _is_left_open(method: FunctionNode) -> bool:
    """Whether a method only raises ``NotImplementedError``, or is abstract."""
    if any(last_name(it).startswith("abstract") for it in method.decorator_list):
        return True
    last = method.body[-1]
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return len(method.body) <= 2 and last_name(raised or last) == "NotImplementedError"


_BASES = frozenset({"ABC", "Generic", "Protocol", "object"})
"""External base classes without methods that matter."""

_OF_OBJECTS = frozenset(dir(object))


def _asks_itself(method: ast.AST, names: Set[str]) -> bool:
    """Whether `method` accesses one of these attributes of ``self``."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr in names
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
        for part in descend(method)
    )
