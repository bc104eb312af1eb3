"""GG101: the gradients that workers return, and whether the program uses them.

A worker that returns the gradient of a tensor that it was sent loses nothing, unless an optimizer
then steps that tensor without a gradient.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.frameworks.torch.copies import digest
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.references import Reference
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.kept import backwards


class _Answer(NamedTuple):
    """A tensor, the call that sent it, and how often its gradient came back."""

    tensor: Reference
    call: Call
    times: int


_answers: dict[int, _Answer] = dropped_at_end({})
"""The answers by the tensor's id, until the next step over it."""


def record_returned(call: Call, values: Collection[str]) -> None:
    """Record the gradients that tasks of `call` have returned.

    Args:
        call: the call.
        values: the digests of the sent tensors that they are gradients of.
    """
    found = len(values)
    answered = []
    for reference, _ in list(call.shipped.values()):
        tensor = reference()
        if tensor is None:
            continue
        count = list(values).count(digest(tensor) or "")
        if count and tensors.grad_fn(tensor) is not None:
            found -= count  # its gradient is not yet that of the leaves behind it
        elif count:
            answered.append(tensor)
            before = _answers.get(id(tensor))
            if before is not None and before.call is call:
                count += before.times
            _answers[id(tensor)] = _Answer(reference, call, count)
    call.answer(found)
    if answered:
        backwards.answered(answered)
        steps.after.subscribe(_stepped)


def _stepped(optimizer: Any) -> None:
    for parameter in steps.parameters_of(optimizer) if _answers else ():
        answer = _answers.pop(id(parameter), None)
        known = None if answer is None else answer.tensor()
        if answer is not None and known is parameter and tensors.gradient_missing(parameter):
            answer.call.answer(-answer.times)
