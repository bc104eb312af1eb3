"""A parallel call under a recording tape: the tape doesn't see what workers compute."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Capture, TapeGradient
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    ANYTHING,
    Atom,
    Instance,
    Method,
    Tensor,
    Thing,
    Unknown,
    of,
)
from gradguard_lint.rules.base import Report, origins, severed_by

CODE = "GG105"


def is_recorded(atom: Atom) -> bool:
    """Whether a tape records operations on `atom`."""
    if isinstance(atom, Tensor):
        return atom.framework == "tensorflow"
    if isinstance(atom, Instance):
        return atom.cls.what == "keras"
    return isinstance(atom, Thing) and atom.kind in ("keras-model", "keras-layer")


def uses_tape(task: TaskRun) -> bool:
    """Whether TensorFlow tensors, variables or models cross with the task or its result."""
    if any(is_recorded(atom) for _, atom, _ in task.contents):
        return True
    if task.result is not None and any(is_recorded(atom) for atom in inner(task.result)):
        return True
    return any(
        is_recorded(atom)
        for effect in of_kinds(task.effects, Capture)
        for atom in inner(effect.payload.value, 2)
    )


_MISSING = {
    None: "the gradient is None, or lacks what `{}` computes",
    "warning": "a gradient through what `{}` computes is None, or lacks that",
    "info": "the gradients that are asked for here do not go through `{}`",
}
"""The effect on the gradients, by severity."""


def _severity(program: Program, call: ParallelCall) -> str | None:
    """The severity: None (an error) if a gradient certainly lacks what the tasks compute.

    That is so if the tape computes the gradient of a task's result for one of its arguments. Info
    if no gradient lacks anything.
    """
    asked = [
        effect
        for effect in program.effects_of(TapeGradient)
        if effect.worker is None and call.ident in effect.calls
    ]
    given: set[int] = set()
    for task in call.tasks:
        crossing = [atom for _, atom, _ in (*task.contents, *task.given)]
        captured = [effect.payload.value for effect in of_kinds(task.effects, Capture)]
        given |= set().union(*map(idents, (*map(of, crossing), *captured)))
    behind = [_result_origins(task) for task in call.tasks]
    known = [made_from for made_from in behind if made_from is not None]
    if len(known) == len(behind):
        given &= set().union(*known)
    severity = "info" if asked else "warning"
    for effect in asked:
        sources = idents(effect.payload.sources) & given
        anything = any(_is_unknown_or_given(atom, given) for atom in inner(effect.payload.sources))
        if not sources and not anything:
            continue
        if call.ident in severed_by(effect.target):
            if sources:
                return None
            severity = "warning"
        elif any(isinstance(atom, Unknown) for atom in inner(effect.target)):
            severity = "warning"
    return severity


def _result_origins(task: TaskRun) -> set[int] | None:
    """The identities behind the results of `task`; None if they are not all known."""
    results = () if task.result is None else inner(task.result)
    tensors = [atom for atom in results if isinstance(atom, Tensor)]
    if not tensors or any(ANYTHING in tensor.sources for tensor in tensors):
        return None
    return set().union(*map(origins, tensors))


def _is_unknown_or_given(atom: Atom, given: set[int]) -> bool:
    """Whether `atom` is unknown, or a method of something that the tasks were `given`."""
    while isinstance(atom, Method):
        atom = atom.receiver
        if idents(of(atom)) & given:
            return True
    return isinstance(atom, Unknown)


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        tape = call.modes.tape
        if tape is None:
            continue
        for task in call.tasks:
            if uses_tape(task):
                severity = _severity(program, call)
                yield Report(
                    call.site,
                    f"`{task.name}` computes in {call.workers} while a tape records in this "
                    f"thread only: {_MISSING[severity].format(task.name)}.",
                    (Step(tape, "the tape is opened here"),),
                    severity=severity,
                    call=call,
                )
                break
