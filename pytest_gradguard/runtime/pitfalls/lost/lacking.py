"""GG103: a backward pass that stops at workers' results, and the tensors left without gradient."""

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
        note: its description.
        certain: it had a graph; otherwise it may have had one, in an unguarded program.
    """

    call: Call
    note: Object
    certain: bool = True


class StoppedPass:
    """One run of the autograd engine while results without their graph are alive.

    Args:
        inputs: the tensors whose gradients are requested; empty if it fills `.grad`.
        calls: the calls that such results came from.

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
    """Whether a tensor shipped to `call` lacks the gradient that its result may have carried.

    False if the program optimizes the result itself.
    """
    shipped = [reference() for reference, _ in list(call.shipped.values())]
    lacking = [one for one in shipped if one is not None and tensors.gradient_missing(one)]
    own = [one for one in lacking if not isinstance(one, torch.nn.Parameter)]
    held = steps.held(search=call.may_search()) if lacking else set()
    if held & set(backward.reached):
        return False
    return bool(own or any(id(one) in held for one in lacking))


def is_wanted(backward: StoppedPass, results: Set[int], search: bool, call: Call) -> bool:
    """Whether the program wants the gradient of a tensor that was sent to `call`.

    False if only parameters were sent that no optimizer holds, and the pass reaches other tensors:
    the results are then features of a fixed model.

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
"""Shipped tensors and their paths, by id."""


def gradients(
    calls: Iterable[Call], backward: StoppedPass, accumulates: bool, outcome: Any
) -> tuple[Shipped, Shipped]:
    """The tensors shipped to those calls that have no gradient now, or a part of one.

    Args:
        calls: the pass stopped at their results.
        backward: the pass.
        accumulates: it fills `.grad`; otherwise it returns gradients.
        outcome: its return value.
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
