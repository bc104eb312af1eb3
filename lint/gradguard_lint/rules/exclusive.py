"""Mutually exclusive effects of a task, as on two branches."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, Step


def excludes(first: Effect, other: Effect) -> bool:
    """Whether a task with the effect `first` never has `other`."""
    if not consistent(first.when, other.when):
        return True
    ways = list(zip(_way(first), _way(other), strict=False))
    fork = next((number for number, (one, two) in enumerate(ways) if one != two), 0)
    if not fork:  # one in the initializer, the other in the task
        return False
    one, two = ways[fork]
    if one.site == two.site:  # a call of one of several functions
        return one.message != two.message
    if (one.site.module, one.site.function) != (two.site.module, two.site.function):
        return True  # the task is one of several functions
    return any(
        _on_two_branches(node, one.site.line, two.site.line)
        if isinstance(node, ast.If)
        else _in_two_arms(_arms(node), one.site.node, two.site.node)
        for node in ast.walk(one.site.module.tree)
    )


def _way(effect: Effect) -> list[Step]:
    return [*effect.chain, Step(effect.site, "")]


def _arms(node: ast.AST) -> list[list[ast.AST]]:
    """The nodes of each branch of a conditional expression or a ``match``."""
    if isinstance(node, ast.IfExp):
        return [[*ast.walk(arm)] for arm in (node.body, node.orelse)]
    if isinstance(node, ast.Match):
        return [[*ast.walk(case)] for case in node.cases]
    return []


def _in_two_arms(arms: list[list[ast.AST]], one: ast.AST, two: ast.AST) -> bool:
    """Whether the nodes are in two of the branches."""
    return any(one in arm for arm in arms) and any(two in arm and one not in arm for arm in arms)


def _on_two_branches(node: ast.If, first: int, other: int) -> bool:
    """Whether the lines are in two branches of `node`, or one is below a branch that leaves."""
    after = node.body[-1]
    for inside, outside in ((first, other), (other, first)):
        if not node.body[0].lineno <= inside <= (after.end_lineno or after.lineno):
            continue
        if node.orelse and node.orelse[0].lineno <= outside <= (node.end_lineno or 0):
            return True
        if isinstance(after, (ast.Return, ast.Raise)) and outside > (node.end_lineno or 0):
            return True
    return False
