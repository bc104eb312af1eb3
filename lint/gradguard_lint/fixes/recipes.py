"""Repairs shared by several rules: other workers for a call."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.fixes.changes import Change, RemoveArgument, RenameKeywords, Replace, SetKeyword
from gradguard_lint.fixes.written import is_open, keyword, repr_of


def made_by(call: ParallelCall) -> ast.Call | None:
    """The call that creates the pool or executor of `call`."""
    node = call.traits.maker.node if call.traits.maker is not None else None
    return node if isinstance(node, ast.Call) and not is_open(node) else None


def in_threads(call: ParallelCall) -> tuple[Change, ...]:
    """The changes for joblib to run the tasks of `call` in threads; none if it cannot."""
    return with_backend(call, "threading")


def with_backend(call: ParallelCall, name: str) -> tuple[Change, ...]:
    """The changes for joblib to run the tasks of `call` in that backend."""
    node = made_by(call)
    if node is None or call.traits.maker is None or call.library != "joblib":
        return ()
    module = call.traits.maker.module
    literal = repr_of(module, name)
    changes: list[Change] = [SetKeyword(module, node, "backend", literal)]
    if len(node.args) > 1:
        changes = [Replace(module, node.args[1], literal)]
    if keyword(node, "prefer") is not None:  # it would have no effect beside the other
        if len(node.args) > 1 or keyword(node, "backend") is not None:
            changes.append(RemoveArgument(module, node, "prefer"))
        else:
            changes.insert(0, RenameKeywords(module, node, {"prefer": "backend"}))
    if keyword(node, "require") is not None:
        return ()
    return tuple(changes)
