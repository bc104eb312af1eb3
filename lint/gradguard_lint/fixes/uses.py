"""Whether code may change an object that it has a name for."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.engine.tree import OWN_SCOPES, last_name, parents_in, stored_names
from gradguard_lint.fixes.written import dotted
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_READING = words(
    "get items keys values copy index count state_dict item tolist numpy cpu clone detach sum mean "
    "norm size dim numel join split strip lower upper startswith endswith format"
)
"""Methods that change nothing; their result may share parts with the object."""
_PURE = words(
    "len print repr int float str bool sum min max sorted list tuple dict set frozenset enumerate "
    "zip range isinstance type any all abs round map filter iter next reversed hasattr id format"
)
_PURE_PACKAGES = words("torch numpy math copy json pickle logging pprint")
_CHANGING = re.compile(r"_\Z|\.[A-Z]\w*\Z|random\.|copyto|put|place|fill_|\.init\.|optim|compile")
"""In names of functions of these packages that may change their arguments."""
_HOLDING = (
    ast.Starred, ast.keyword, ast.IfExp, ast.BoolOp, ast.Await, ast.List, ast.Tuple, ast.Set,
    ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
"""Expressions whose value contains their operands."""


class Uses:
    """Uses of objects in code of a module."""

    def __init__(self, module: Module, code: ast.AST, call: ParallelCall) -> None:
        self.module = module
        self.code = code
        self.call = call
        self.parents = parents_in(code)
        self.seen: set[str] = set()

    def is_local(self, node: ast.Name) -> bool:
        """Whether `node` names a local variable of a function around it."""
        around: ast.AST | None = node
        while around is not None and not (isinstance(around, _FUNCTIONS) and _has(around, node.id)):
            around = self.parents.get(around)
        return around is not None

    def may_change(self, node: ast.AST, names: Collection[str] | None = None) -> bool:
        """Whether the object of `node`, or its attributes of these `names`, may be changed."""
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return False  # rebinds the name
        parent = self.parents.get(node)
        if names is not None:
            if isinstance(parent, ast.Call):
                return last_name(parent.func) in ("setattr", "delattr")
            if not isinstance(parent, ast.Attribute) or (names and parent.attr not in names):
                return False
            after = self.parents.get(parent)
            if isinstance(after, ast.Call) and (not names or after.func is parent):
                return False
            if isinstance(parent.ctx, ast.Load):
                return self.may_change(parent)
        if isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
            after = self.parents.get(parent)
            if not isinstance(parent.ctx, ast.Load):
                return True
            if not isinstance(after, ast.Call) or after.func is not parent:
                return self.may_change(parent)
            if isinstance(parent, ast.Subscript):
                return False  # calls an item
            return parent.attr not in _READING or self.may_change(after)
        if isinstance(parent, ast.Call):
            return parent.func is not node and not self._is_pure(parent)
        if isinstance(parent, ast.Assign):
            return any(map(self._is_changed_as, parent.targets))
        if isinstance(parent, (ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
            return self._is_changed_as(parent.target)
        if isinstance(parent, ast.withitem):
            return parent.optional_vars is None or self._is_changed_as(parent.optional_vars)
        if isinstance(parent, _HOLDING):
            return self.may_change(parent)
        return isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda))

    def _is_pure(self, call: ast.Call) -> bool:
        """Whether `call` does not change its arguments; the call that dispatches the tasks pickles
        them."""
        if call is self.call.site.node or (
            self.call.traits.maker and call is self.call.traits.maker.node
        ):
            return True
        full = dotted(self.module, call.func)
        if not full:
            return isinstance(call.func, ast.Name) and call.func.id in _PURE
        return full.partition(".")[0] in _PURE_PACKAGES and not _CHANGING.search(full)

    def _is_changed_as(self, target: ast.expr) -> bool:
        """Whether the object may be changed by its new name in an assignment."""
        new = stored_names(target) - self.seen
        self.seen |= new
        return any(
            isinstance(it, (ast.Attribute, ast.Subscript)) for it in ast.walk(target)
        ) or any(
            self.may_change(node)
            for node in ast.walk(self.code)
            if isinstance(node, ast.Name) and node.id in new
        )


def _has(function: ast.AST, name: str) -> bool:
    """Whether `name` is a local variable of the function."""
    waiting = [*ast.iter_child_nodes(function)]
    found = False
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global) and name in node.names:
            return False
        found |= getattr(node, "name", None) == name
        found |= isinstance(node, ast.arg) and node.arg == name
        found |= (
            isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        )
        if not isinstance(node, OWN_SCOPES):
            waiting += ast.iter_child_nodes(node)
    return found
