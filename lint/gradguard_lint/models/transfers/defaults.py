"""``collections.defaultdict``."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import ABSENT
from gradguard_lint.domain.values import Frame, Table, Value, of
from gradguard_lint.engine.containers import adopted
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.builtin_calls import builtin
from pytest_gradguard.records import replace


def default_dict(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``defaultdict(factory, ...)``: a dict that makes what it does not have."""
    missing = args.get(0, "default_factory")
    rest = replace(args, positional=args.positional[1:], written=False)
    made = builtin(m, frame, node, "builtins.dict", rest, row)
    if missing is None or missing.is_none:
        return made
    for table in made.of(Table):
        plain = replace(table, ident=0, missing=missing)
        return adopted(m, node, of(plain))
    return adopted(m, node, of(Table((), ABSENT, missing=missing)))
