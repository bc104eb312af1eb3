"""Branches: what is assumed where, and expressions that choose."""

from __future__ import annotations

import ast

from gradguard_lint.semantics.core import GPU_PRESENT, Core
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.truth import denies_gpu, plain_condition, truth_of
from gradguard_lint.semantics.values import (
    NONE,
    UNKNOWN,
    Key,
    Unknown,
    Value,
    guarded,
    join,
)


class Branches(Core):
    """Evaluation of conditional expressions, and the assumptions of every branch."""

    def eval(self, frame: Frame, node: ast.AST | None) -> Value:
        """What `node` may be; defined with the expressions."""
        raise NotImplementedError

    def on_IfExp(self, frame: Frame, node: ast.IfExp) -> Value:
        test = self.eval(frame, node.test)
        found = []
        for truth, branch in ((True, node.body), (False, node.orelse)):
            saved = dict(self.assumed)
            if self.enter_branch(frame, node.test, test, truth):
                value = self.eval(frame, branch)
                found.append(guarded(value, self.condition(test, truth)))
            self.assumed = saved
        return join(found) if found else UNKNOWN

    def condition(self, test: Value, truth: bool) -> frozenset[tuple[Key, bool]]:
        """The assumptions that `test` having `truth` amounts to."""
        worlds: list[frozenset[tuple[Key, bool]]] = []
        ruled_out: set[tuple[Key, bool]] = set()
        for choice in test.choices:
            atom = choice.atom
            value = truth_of(atom)
            if value is not None and value is not truth:
                if len(choice.when) == 1:
                    ruled_out |= {(key, not wanted) for key, wanted in choice.when}
            elif isinstance(atom, Unknown) and atom.key is not None:
                worlds.append(choice.when | {plain_condition(atom.key, truth)})
            else:
                worlds.append(choice.when)
        if not worlds:
            return NONE
        common = frozenset.intersection(*worlds)
        return common | {item for item in ruled_out if (item[0], not item[1]) not in common}

    def enter_branch(self, frame: Frame, node: ast.expr, test: Value, truth: bool) -> bool:
        """Assume that `test` has `truth`; False where it cannot."""
        if not any(truth_of(atom) in (truth, None) for atom in test.atoms):
            return False
        for key, wanted in self.condition(test, truth):
            self.assume(key, wanted)
        self.refine(frame, node, truth)
        return True

    def refine(self, frame: Frame, node: ast.expr, truth: bool) -> None:
        """What the parts of a test tell by themselves."""
        if denies_gpu(node, truth):
            self.assume(GPU_PRESENT, False)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.refine(frame, node.operand, not truth)
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) is truth:
            for part in node.values:
                value = self.eval(frame, part)
                self.enter_branch(frame, part, value, truth)
