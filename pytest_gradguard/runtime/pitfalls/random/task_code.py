"""What the bytecode of a task shows about its draws from a generator that tasks share (GG305)."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_gradguard.runtime.kernel import used_globals
from pytest_gradguard.runtime.kernel.tasks import code_of, mentions


def takes_a_shard(function: Any) -> bool:
    """Whether a task shuffles shared data and takes its part by a stride or a split.

    The order has to be the same in each task.
    """
    code = code_of(function)
    if code is None or not mentions(function, _SHUFFLES):
        return False
    return mentions(function, _SPLITS) or any(
        instruction.opname == "BUILD_SLICE" and instruction.arg == 3
        for instruction in dis.get_instructions(code)
    )


def shuffles_what_workers_share(function: Any) -> bool:
    """Whether a stream shuffles shared data and takes a part of it afterwards.

    Each worker has to draw the same numbers.
    """
    code = code_of(function)
    if code is None:
        return False
    shuffled, parted = None, -1
    for instruction in dis.get_instructions(code):
        if instruction.argval in _SHUFFLES and shuffled is None:
            shuffled = instruction.offset
        strided = instruction.opname == "BUILD_SLICE" and instruction.arg == 3
        if strided or instruction.argval in _PARTS:
            parted = instruction.offset
    return shuffled is not None and parted > shuffled


_SHUFFLES = frozenset(("permutation", "permuted", "randperm", "shuffle"))
_SPLITS = frozenset(("array_split", "chunk", "split", "tensor_split"))
_PARTS = _SPLITS | {"islice", "num_workers"}


def spawns_one(functions: Iterable[Any]) -> bool:
    """Whether the functions spawn one generator at a time, which is the same in each copy.

    If they spawn several, each task may take its own.
    """
    counts = [
        count
        for function in functions
        for one in used_globals.uses_of(function).functions
        for count in _spawned_in(one.__code__)
    ]
    return bool(counts) and all(count == 1 for count in counts)


def _spawned_in(code: types.CodeType) -> Iterator[Any]:
    """Arguments of methods called `spawn` in `code` and its nested functions."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BETWEEN:
            continue
        if before == "spawn":
            yield instruction.argval if instruction.opname in _NUMBERS else None
        named = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        before = instruction.argval if named else ""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _spawned_in(constant)


_BETWEEN = ("CACHE", "PRECALL", "PUSH_NULL", "NOP")
_NUMBERS = ("LOAD_CONST", "LOAD_SMALL_INT")
