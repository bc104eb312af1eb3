"""GG501: values that a collective handed out without their graph, followed to the next backward.

A function mode follows what this thread computes from this rank's own part, from such a call on.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_gradguard.runtime.frameworks.torch import engine, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.following import push_below, take_off
from pytest_gradguard.runtime.kernel import callsite, collector, losses, watching
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.ddp import gg501, shadows

_compiling = torch.compiler.is_compiling

_FRAMES = 3
"""In how many functions of the program a tensor's name is looked for."""


class Cut(shadows.Source):
    """One tensor with history that a collective was given, and its values that came out of it.

    Attributes:
        function: the collective.
        site: the line that called it.
        given: what it was called there, and its description.
        settled: it has been reported.
    """

    def __init__(self, function: str, tensor: Any, home: collector.Collector) -> None:
        frame = callsite.user_frame()
        self.function = function
        self.home = home
        self.site = None if frame is None else callsite.site_of(frame)
        self.given = (_name_of(tensor, frame), tensors.describe(tensor))
        self.settled = False
        self._tensor = weakref.ref(tensor)
        _live.add(self)

    def wanted(self, inputs: tuple[Any, ...]) -> bool:
        """Whether one of the tensors whose gradients are asked for lacks something."""
        tensor = self._tensor()
        if not inputs:
            return True
        if tensor is None:
            return False
        asked = {id(one) for one in inputs}
        return id(tensor) in asked or any(id(one) in asked for one in tensors.leaves_of([tensor]))

    def is_missed(self) -> bool:
        """Whether a gradient other than zero was due to the own values; it is forgotten."""
        gradient = self.take_gradient()
        if gradient is None or self.settled:
            return False
        with torch._C.DisableTorchFunction():
            return bool(((gradient != 0) & gradient.isfinite()).any())

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


_live: weakref.WeakSet[Cut] = dropped_at_end(weakref.WeakSet())


def of(function: str, given: Any) -> Cut | None:
    """What to follow of what a collective was given; None where nobody can miss its gradient."""
    if not torch.is_grad_enabled() or not tensors.recorded(given) or tensors.spent(given):
        return None
    home = collector.innermost()
    if home is None or gg501.CODE in home.ignore | collector.allowed_now():
        return None
    return Cut(function, given, home)


def follow(cut: Cut, output: Any, part: int = 0, parts: int = 1) -> None:
    """Follow what is computed from the own values of `cut`: that part of `output`."""
    shadows.add(cut, output, part, parts)
    _follow_here()


# -- following -----------------------------------------------------------------------------------


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Follows what is computed from values without their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        again = None
        if not self.done and not _compiling():
            again = attempt(shadows.again, func, args, kwargs)
        result = func(*args, **kwargs)
        if again is not None:
            again.made(result)
        return result


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


watching.at_end(_rest)


# -- the backward --------------------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    live = list(_live)
    for cut in live:
        cut.take_gradient()  # of a backward pass that failed
    if not shadows.backward_begins(run):
        return None
    fails = not any(tensors.requires_grad(one) for one in run.outputs if tensors.is_tensor(one))

    def ended(_: Any, raised: BaseException | None) -> None:
        mode = _thread.mode
        if mode is not None and not run.create_graph:
            mode.done = True
            shadows.forget_all()
        if raised is None or fails:
            shadows.backward_ended(run)
            cuts = {cut for cut in live if cut.is_missed() and cut.wanted(run.inputs)}
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
