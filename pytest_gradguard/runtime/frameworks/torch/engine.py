"""Torch's autograd engine: the one place that wraps it and reports each backward pass.

All backward passes of torch, `backward()` and `autograd.grad`, run through one function, which is
wrapped while there are subscribers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt, fault, theirs_only, without_this_frame
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

_NAME = "_engine_run_backward"


class Backward:
    """One backward pass.

    Attributes:
        outputs: the differentiated tensors.
        gradients: the initial gradients, one for each output.
        inputs: the tensors whose gradients are requested; empty for all leaves.
        create_graph: whether the gradients get a graph of their own.
        accumulates: whether the gradients go to `.grad` instead of being returned.
    """

    __slots__ = ("accumulates", "create_graph", "gradients", "inputs", "outputs")

    def __init__(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = len(args)
        self.outputs = outputs
        self.gradients = args[0] if given else ()
        self.create_graph = bool(args[2] if given > 2 else kwargs.get("create_graph"))
        inputs = args[3] if given > 3 else kwargs.get("inputs")
        self.inputs: tuple[Any, ...] = tuple(inputs or ())
        self.accumulates = bool(kwargs.get("accumulate_grad", True))


End = Callable[[Any, BaseException | None], None]
"""Called after a backward pass, with the gradients that it returned, or with its error."""
Listener = Callable[[Backward], End | None]
"""Called before a backward pass; its result is called after it."""


class Order(IntEnum):
    """The order of listeners before a backward pass, reversed after it."""

    REPORTS = -1
    """Listeners that may raise a finding after it, when all others have been called."""
    WATCHES = 0
    COMPUTES = 1
    """Listeners whose effect is limited to the engine, outside of others' inspections."""


def caller() -> FrameType | None:
    """The frame that called the engine, inside torch; for listeners."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is globals() and frame.f_code.co_name == _NAME:
            break
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        listening = _listeners.now
        if not listening or sys.modules["torch"].compiler.is_compiling():
            return original(t_outputs, *args, **kwargs)
        ends: list[End] = []
        try:
            attempt(_begin_all, listening, t_outputs, args, kwargs, ends)
            outcome = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            attempt(_end_all, ends, (), error)
            without_this_frame(error)
            raise
        with theirs_only:
            attempt(_end_all, ends, outcome, None)
        return outcome

    return _engine_run_backward


def _begin_all(
    listening: tuple[Listener, ...], outputs: Any, args: Any, kwargs: Any, ends: list[End]
) -> None:
    backward = Backward(outputs, args, kwargs)
    for listener in listening:
        try:
            end = listener(backward)
            if end is not None:
                ends.append(end)
        except Exception as error:
            fault(error)


def _end_all(ends: list[End], outcome: Any, raised: BaseException | None) -> None:
    finding: BaseException | None = None
    while ends:
        try:
            ends.pop()(outcome, raised)
        except Exception as error:
            try:
                fault(error)
            except Exception as to_be_raised:
                finding = finding or to_be_raised
    if finding is not None and raised is None:
        raise finding


def _make() -> list[Patch]:
    autograd: Any = sys.modules.get("torch.autograd")
    if autograd is None:
        return []
    # Torch's own tracing replaces both names, and then restores both from the second one, so they
    # get the same wrapper.
    # they get one and the same wrapper.
    wrap = functools.cache(_wrap)
    return [Patch(autograd, _NAME, wrap), Patch(autograd.graph, _NAME, wrap)]


_listeners: Subscribers[Listener] = Subscribers(LatePatches(_make, lasting=True))
"""Called for each backward pass, if torch is loaded: the first subscriber is first before it, and
last after it. A failure of a listener becomes a warning; only findings are raised, after all were
called."""
subscribe, unsubscribe = _listeners.subscribe, _listeners.unsubscribe
