"""GG501: outputs that lost their graph in a collective, followed to the next backward pass.

From such a call on, a function mode follows what this thread computes from this rank's own part.
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
"""How many functions of the program are searched for a tensor's name."""


class Cut(shadows.Source):
    """A tensor with history that was passed to a collective, and its values in the output.

    Attributes:
        function: the collective.
        site: the line that called it.
        given: the tensor's name there, and its description.
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
        """Whether a tensor whose gradient is requested depends on this one."""
        tensor = self._tensor()
        if not inputs:
            return True
        if tensor is None:
            return False
        asked = {id(one) for one in inputs}
        return id(tensor) in asked or any(id(one) in asked for one in tensors.leaves_of([tensor]))

    def is_missed(self) -> bool:
        """Whether a nonzero gradient was due to the own values; clears that gradient."""
        gradient = self.take_gradient()
        if gradient is None or self.settled:
            return False
        with torch._C.DisableTorchFunction():
            return bool(((gradient != 0) & gradient.isfinite()).any())

    def lacking(self) -> list[Any]:
        """The leaves behind the tensor that have no gradient."""
        tensor = self._tensor()
        leaves = () if tensor is None else tensors.leaves_of([tensor])
        return [leaf for leaf in leaves if tensors.gradient_missing(leaf)]


def _name_of(tensor: Any, frame: Any) -> str:
    """The program's name for `tensor` where it calls the collective, if any."""
    for one in callsite.user_frames(frame, _FRAMES):
        for name, value in callsite.local_names(one):
            if value is tensor:
                return name
    return ""


_live: weakref.WeakSet[Cut] = dropped_at_end(weakref.WeakSet())


def find_cut(function: str, given: Any) -> Cut | None:
    """The input of a collective to follow; None if nobody can miss its gradient."""
    if not torch.is_grad_enabled() or not tensors.recorded(given) or tensors.spent(given):
        return None
    home = collector.innermost()
    if home is None or gg501.CODE in home.ignore | collector.allowed_now():
        return None
    return Cut(function, given, home)


def follow(cut: Cut, output: Any, part: int = 0, parts: int = 1) -> None:
    """Follow computations from the own values of `cut`: part `part` of `parts` of `output`."""
    shadows.add(cut, output, part, parts)
    _follow_here()


# -- following -----------------------------------------------------------------------------------


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Follows computations from values without their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        repeated = None
        if not self.done and not _compiling():
            repeated = attempt(shadows.repeat, func, args, kwargs)
        result = func(*args, **kwargs)
        if repeated is not None:
            repeated.follow_result(result)
        return result


class _Thread(threading.local):
    mode: _Following | None = None


_thread = _Thread()


def _follow_here() -> None:
    """Follow this thread's computations until its next backward pass."""
    if _thread.mode is None:
        steps.before.subscribe(_stepping)
        engine.subscribe(_backward, engine.Order.REPORTS)
        _thread.mode = _Following()
        push_below(_thread.mode)
    _thread.mode.done = False


def _stepping(optimizer: Any) -> None:
    """Remove the mode from the stack; a backward pass called through it would restore it."""
    mode = _thread.mode
    if mode is not None and mode.done:
        _deactivate()


def _deactivate() -> None:
    mode, _thread.mode = _thread.mode, None
    if mode is not None:
        take_off(mode)


watching.at_end(_deactivate)


# -- the backward --------------------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    live = list(_live)
    for cut in live:
        cut.take_gradient()  # from a backward pass that failed
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
