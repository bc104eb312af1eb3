"""Functions that make their own workers, map over them, and give all results."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import UNKNOWN, Frame, Value, join
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import hand_out, in_line
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.starting import start_value, starts_of
from gradguard_lint.models.transfers.work import task_of


def mapping(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``process_map(f, xs)``."""
    assert row.hands is not None
    function = args.get(*row.hands.function)
    if function is None:
        return UNKNOWN
    task = task_of(m, frame, node, row.hands, args, function, 1, name)
    starts = starts_of(m, start_value(m, row, args))
    workers = args.get(None, "max_workers")
    if not starts or (workers is not None and workers.constant == 1):
        return sequence(in_line(m, frame, [task]))
    library = name.rpartition(".")[0]
    results = [hand_out(m, frame, node, [task], it, library, when=when) for it, when in starts]
    return sequence(join(results))
