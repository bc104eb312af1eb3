"""GG103: a backward pass that stops at results of workers, and what lacks its gradient then."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.evidence import Object


class Severed(NamedTuple):
    """A result whose graph was dropped.

    Attributes:
        call: the call that it came from.
        note: what it was.
        certain: it had a graph; else it may have had one, in a program without a guard.
    """

    call: Call
    note: Object
    certain: bool = True


class StoppedPass:
    """One run of the autograd engine while results without their graph are alive.

    Args:
        inputs: what it was asked for; empty, where it fills `.grad`.
        calls: those that such results came from.

    Attributes:
        outputs: where it began.
        asked: the ids of the inputs.
        stopped, reached: the results that it stopped at, and their ids.
        had_no_gradient: the ids of the shipped leaves that had no gradient before.
    """

    def __init__(self, inputs: tuple[Any, ...], calls: Iterable[Call]) -> None:
        self.inputs = inputs
        self.outputs: Any = ()
        self.asked = {id(tensor) for tensor in inputs}
        self.stopped: list[Severed] = []
        self.reached: list[int] = []
        self.had_no_gradient: set[int] = set()
        for known in calls:
            for reference, _ in list(known.shipped.values()):
                tensor = reference()
                if tensor is not None and tensor.is_leaf and tensors.gradient_missing(tensor):
                    self.had_no_gradient.add(id(tensor))


def misses_a_gradient(call: Call, backward: StoppedPass) -> bool:
    """Whether what was pickled before `call` lacks the gradient that its result may stand for.

    Not where the program optimizes the result itself.
    """
    shipped = [reference() for reference, _ in list(call.shipped.values())]
    lacking = [one for one in shipped if one is not None and tensors.gradient_missing(one)]
    own = [one for one in lacking if not isinstance(one, torch.nn.Parameter)]
    held = steps.held(search=call.may_search()) if lacking else set()
    if held & set(backward.reached):
        return False
    return bool(own or any(id(one) in held for one in lacking))


def is_wanted(backward: StoppedPass, results: Set[int], search: bool, call: Call) -> bool:
    """Whether the program wants the gradient of something that was sent to `call`.

    Not of parameters alone that no optimizer holds and the pass does not reach, where it reaches
    other tensors: the results are features of a fixed model then.

    Args:
        backward: the pass.
        results: the ids of all results that have lost their graph.
        search: optimizers may be searched for.
        call: the call.
    """
    shipped = [reference() for reference, _ in list(call.shipped.values())]
    leaves = list(tensors.leaves_of([one for one in shipped if one is not None]))
    if not leaves or not all(isinstance(leaf, torch.nn.Parameter) for leaf in leaves):
        return True
    reached = {id(leaf) for leaf in tensors.leaves_of(backward.outputs)}
    sent = {id(leaf) for leaf in leaves}
    if reached <= results or reached & sent or sent & steps.held():
        return True
    return bool(search and sent & steps.held(search=True))


Shipped = dict[int, tuple[Any, str]]
"""By their ids: tensors that were shipped, and by which paths."""


def gradients(
    calls: Iterable[Call], backward: StoppedPass, accumulates: bool, outcome: Any
) -> tuple[Shipped, Shipped]:
    """Which tensors that were shipped to those calls have no gradient now, or half of one.

    Args:
        calls: their results are where the pass stopped.
        backward: the pass.
        accumulates: it fills `.grad`; else it returns gradients.
        outcome: what it returned.
    """
    without: Shipped = {}
    partial: Shipped = {}
    returned = {}
    if not accumulates and isinstance(outcome, tuple):
        returned = {
            id(tensor): gradient for tensor, gradient in zip(backward.inputs, outcome, strict=False)
        }
    for call in calls:
        for reference, sent in list(call.shipped.values()):
            tensor = reference()
            if tensor is None:
                continue
            identity, path = id(tensor), call.name_of(sent)
            if not accumulates:
                if identity in returned:
                    bucket = without if returned[identity] is None else partial
                    bucket[identity] = (tensor, path)
            elif tensor.is_leaf:
                if tensors.gradient_missing(tensor):
                    without[identity] = (tensor, path)
                elif identity in backward.had_no_gradient:
                    partial[identity] = (tensor, path)
    return without, partial
