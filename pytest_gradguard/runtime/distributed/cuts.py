"""GG501: values that a collective handed out without their graph, followed to the next backward.

A function mode follows what this thread computes from them, from such a call on.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_gradguard.runtime import callsite, collector, losses
from pytest_gradguard.runtime.checks import gg501
from pytest_gradguard.runtime.faults import fault
from pytest_gradguard.runtime.frameworks.torch import engine, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.following import (
    Marks,
    has_derivative,
    is_constant,
    push_below,
    take_off,
    tensors_in,
)

_compiling = torch.compiler.is_compiling

_WRITES = frozenset(
    (
        *("__setitem__", "copy_", "index_copy_", "index_put_", "masked_scatter_", "scatter_"),
        "put_",
    )
)
"""What puts one tensor into a part of another."""
_COMBINES = frozenset(
    (
        *("where", "scatter", "index_copy", "index_put", "masked_scatter", "put"),
        *("select_scatter", "slice_scatter", "diagonal_scatter"),
    )
)
"""The same, as functions that return what they have put together."""
_COLLECTIVES = "torch.distributed"
"""Whose functions come through a mode, too: what they hand out is known already."""
_FRAMES = 3
"""In how many functions of the program a tensor's name is looked for."""


class Cut:
    """One tensor with history that a collective was given, and its values that came out of it.

    Attributes:
        function: the collective.
        site: the line that called it.
        given: what it was called there, and its description.
        settled: the own part was put back, or it has been reported.
        over: a backward has run since: nothing more is followed.
    """

    def __init__(self, function: str, tensor: Any, home: collector.Collector) -> None:
        frame = callsite.user_frame()
        self.function = function
        self.home = home
        self.site = None if frame is None else callsite.site_of(frame)
        self.given = (_name_of(tensor, frame), tensors.describe(tensor))
        self.settled = False
        self.over = False
        self._tensor = weakref.ref(tensor)
        self._storage = 0
        self._range = (0, 0)

    def own_part(self, output: Any, part: int, parts: int) -> None:
        """Say that this rank's own values are that part of `output`."""
        size = output.numel() * output.element_size() // parts
        start = output.storage_offset() * output.element_size() + part * size
        self._storage = output.untyped_storage().data_ptr()
        self._range = (start, start + size)

    def overlaps(self, tensor: Any) -> bool:
        """Whether `tensor` may hold this rank's own values: not where it lies beside them."""
        if not self._storage or tensor.layout is not torch.strided:
            return True
        if tensor.untyped_storage().data_ptr() != self._storage:
            return True
        first = tensor.storage_offset()
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        last = first + sum((size - 1) * stride for size, stride in sizes)
        width = tensor.element_size()
        start, end = self._range
        return bool(tensor.numel() and first * width < end and (last + 1) * width > start)

    def wanted(self, inputs: tuple[Any, ...]) -> bool:
        """Whether one of the tensors whose gradients are asked for lacks something."""
        tensor = self._tensor()
        if not inputs:
            return True
        if tensor is None:
            return False
        asked = {id(one) for one in inputs}
        return id(tensor) in asked or any(id(one) in asked for one in tensors.leaves_of([tensor]))

    def lacking(self) -> list[Any]:
        """The leaves behind the given tensor that have no gradient."""
        tensor = self._tensor()
        leaves = () if tensor is None else tensors.leaves_of([tensor])
        return [leaf for leaf in leaves if tensors.gradient_missing(leaf)]


def _name_of(tensor: Any, frame: Any) -> str:
    """What the program calls `tensor` where it hands it to a collective, if it has a name there."""
    for one in callsite.user_frames(frame, _FRAMES):
        for name, value in callsite.local_names(one):
            if value is tensor:
                return name
    return ""


_marks: Marks[Cut] = Marks()
"""The tensors that were computed from values without their graph."""
_within: Marks[Cut] = Marks()
"""The same where gradients were off: what an autograd function returns gets a graph afterwards."""


def _cuts_of(tensor: Any) -> frozenset[Cut]:
    """The values without their graph that `tensor` was computed from, as one that has gradients."""
    cuts = _marks.of(tensor)
    if _within and (not torch.is_grad_enabled() or tensors.requires_grad(tensor)):
        cuts |= _within.of(tensor)
    return cuts


def of(function: str, given: Any) -> Cut | None:
    """What to follow of what a collective was given; None where nobody can miss its gradient."""
    if not torch.is_grad_enabled() or not tensors.recorded(given) or tensors.spent(given):
        return None
    home = collector.innermost()
    if home is None or gg501.CODE in home.ignore | collector.allowed_now():
        return None
    return Cut(function, given, home)


def follow(cut: Cut, tensor: Any) -> None:
    """Follow what is computed from `tensor`, which holds the values of `cut`."""
    _marks.add(tensor, frozenset((cut,)))
    _follow_here()


def forget(tensor: Any) -> None:
    """Follow nothing more of what `tensor` held."""
    for marks in (_marks, _within):
        marks.drop(tensor)


def stop() -> None:
    """Follow nothing more."""
    engine.unsubscribe(_backward)
    _marks.clear()
    _within.clear()
    _rest()
    steps.before.unsubscribe(_stepping)


# -- following -----------------------------------------------------------------------------------


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Follows what is computed from values without their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        try:
            if _marks and not self.done and not _compiling():
                _follow(func, args, kwargs, result)
        except Exception as error:
            fault(error)
        return result


def _follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    if is_constant(func) or str(getattr(func, "__module__", "")).startswith(_COLLECTIVES):
        return
    given = tensors_in((args, kwargs))
    cuts = frozenset().union(*map(_cuts_of, given))
    cuts = frozenset(cut for cut in cuts if not (cut.over or cut.settled))
    if not cuts:
        return
    name = getattr(func, "__name__", "")
    own = any(tensors.requires_grad(one) and not _cuts_of(one) for one in given)
    if own and (name in _WRITES or name in _COMBINES):
        for cut in cuts if name in _WRITES else ():
            cut.settled = True
        return
    marks = _marks if torch.is_grad_enabled() else _within
    for tensor in tensors_in(args[:1] if result is None else result):
        if has_derivative(tensor):
            held = frozenset(cut for cut in cuts if cut.overlaps(tensor))
            if held:
                marks.add(tensor, held)


class _Thread(threading.local):
    mode: _Following | None = None


_thread = _Thread()


def _follow_here() -> None:
    """Follow what this thread computes, until its next backward."""
    if _thread.mode is None:
        steps.before.subscribe(_stepping)
        engine.subscribe(_backward, engine.Order.REPORTS)
        _thread.mode = _Following()
        push_below(_thread.mode)
    _thread.mode.done = False


def _stepping(optimizer: Any) -> None:
    """Take the mode off the stack: a backward that it is called through puts it back at its end."""
    mode = _thread.mode
    if mode is not None and mode.done:
        _rest()


def _rest() -> None:
    mode, _thread.mode = _thread.mode, None
    if mode is not None:
        take_off(mode)


# -- the backward --------------------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    if not _marks:
        return None
    cuts = {cut for output in run.outputs for cut in _cuts_of(output) if not cut.settled}
    cuts = {cut for cut in cuts if cut.wanted(run.inputs)}
    fails = not any(map(tensors.requires_grad, run.outputs))

    def ended(_: Any, raised: BaseException | None) -> None:
        mode = _thread.mode
        if mode is not None and not run.create_graph:
            mode.done = True
            for cut in _marks.all():
                cut.over = True
        if cuts and (raised is None or fails):
            _report(cuts, "backward" if run.accumulates else "autograd.grad", fails)

    return ended


def _report(cuts: set[Cut], verb: str, fails: bool) -> None:
    frame = callsite.user_frame()
    backward = None if frame is None else callsite.site_of(frame)
    for cut in cuts:
        cut.settled = True
        if gg501.CODE in collector.allowed_now():
            continue

        def make(cut: Cut = cut) -> gg501.Evidence:
            return gg501.Evidence(cut.site, cut.function, cut.given, backward, verb, fails)

        evidence = cut.home.evidence((gg501.CODE, cut.site and cut.site.key), make)
        evidence.count += 1
        losses.record(cut.lacking(), evidence, cut.home, backward)
        if evidence.count == 1:
            collector.announce(cut.home, [evidence])
