"""The log of torch: backward passes, cuts of the graph, optimizer steps, changes of tensors.

It holds only call sites and weak references; `torch_patches` writes it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

import torch

from pytest_gradguard.gradients import recording
from pytest_gradguard.gradients.recording import Recorder, now
from pytest_gradguard.gradients.torch_exits import (
    ARRAY,
    GRAD,
    NUMPY,
    Exit,
    entered_by,
    inside_torch,
    outside_torch,
)
from pytest_gradguard.gradients.torch_graph import Leaves, behind
from pytest_gradguard.gradients.torch_records import (
    DISTRIBUTED,
    WRITTEN,
    Backward,
    Change,
    Cut,
    Failure,
    Step,
)
from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.references import Reference, refer

_compiling = torch.compiler.is_compiling
_tracing = torch._guards.TracingContext.try_get
_WALKED = 50_000
"""Nodes searched for one call site; beyond that, only for powers of two of its events."""
_SEVERED = 1_000
"""Worker results that are kept for one call site."""


class Listener(Protocol):
    """A watch, which is notified of backward passes."""

    def before_backward(self) -> None:
        """Check the watched tensors before a backward pass."""

    def look_at_gradients(self) -> None:
        """Check `.grad` after an optimizer step, or before it is cleared."""

    def after_backward(self, inputs: Any, outcome: Any) -> None:
        """Check the gradients; `outcome`: those that `autograd.grad` returned."""

    def missing(self) -> list[Any]:
        """Live watched tensors without a gradient so far."""


_Key = tuple[str, CodeType, int]


class Log(recording.Log):
    """Events of torch since the first open watch began."""

    def __init__(self) -> None:
        super().__init__()
        self.backwards: dict[object, Backward] = {}
        self.failed: Failure | None = None
        self.cuts: dict[object, Cut] = {}
        self.made: dict[int, Cut] = {}
        self.flat: dict[object, Cut] = {}
        self.steps: dict[_Key, Step] = {}
        self.changes: dict[_Key, Change] = {}
        self.functions: set[type] = set()
        self.data_of: dict[int, tuple[Reference, Reference]] = {}
        self.in_context: dict[int, int] = {}
        self._lock = Lock()

    # -- backwards -----------------------------------------------------------------------------

    def backward_ended(self, backward: torch_engine.Backward, outcome: Any) -> None:
        """Record a backward pass that returned `outcome`, and the leaves that it reached."""
        inputs, accumulates = backward.inputs, backward.accumulates
        for listener in list(self.listeners):
            listener.after_backward(inputs, () if accumulates else outcome)
        known = self._backward_here("backward" if accumulates else "autograd.grad")
        known.restricted = known.restricted or bool(inputs)
        known.first_order = backward.create_graph and not accumulates
        known.transform = torch._C._functorch.maybe_current_level() is not None or any(
            map(is_transformed, inputs)
        )
        missing = [tensor for listener in list(self.listeners) for tensor in listener.missing()]
        if not missing or not _due(known.walked, known.count):
            return
        found = behind(
            backward.outputs,
            frozenset(map(id, missing)),
            [tensor for tensor in missing if not tensor.is_leaf],
        )
        with self._lock:
            known.walked += found.walked
            known.complete = known.complete and found.complete
            known.leaves.update(found.leaves)
            known.found.update(dict.fromkeys(found.leaves, known.last))
            known.users.update(found.users)
            known.passed.update(found.passed)
        for leaf in found.leaves:
            maker = self.made.get(leaf)
            if maker is not None and maker.produced(found.leaves[leaf]()):
                maker.confirmed |= maker.behind[leaf]
        if not accumulates and not backward.create_graph:
            self._first_order(outcome, found)
        # Including results of workers, which may no longer exist at the end of the watch.
        provenance: Any = sys.modules.get("pytest_gradguard.runtime.pitfalls.lost.provenance")
        if provenance is not None and len(known.severed) < _SEVERED:
            known.severed.extend(provenance.severed_among(found.leaves.values()))

    def _backward_here(self, verb: str) -> Backward:
        """The record of the current call site, with one more backward pass."""
        frames = callsite.user_frames(sys._getframe(2))
        known = self.record_at(self.backwards, verb, frames, Backward, verb=verb)
        known.again()
        return known

    def distributed_backward_ended(self, gradients: Any) -> None:
        """Record a backward pass of distributed autograd with its context's `gradients`."""
        known = self._backward_here(DISTRIBUTED)
        for tensor in gradients:
            known.leaves[id(tensor)] = refer(tensor)
            known.found[id(tensor)] = known.last
            self.in_context.setdefault(id(tensor), tensor._version)

    def used_from_context(self, tensor: Any) -> bool:
        """Whether `tensor` changed after a distributed context held its gradient."""
        found = any(
            one.verb == DISTRIBUTED and one.reached(tensor) for one in self.backwards.values()
        )
        return found and tensor._version != self.in_context[id(tensor)]

    def _first_order(self, gradients: Any, found: Leaves) -> None:
        """Record that `gradients` were returned without their own graph."""
        frame, called = entered_by(torch_engine.caller())
        if frame is None:
            return
        known = self._cut_at(self.cuts, called or GRAD, frame)
        known.again()
        for gradient in gradients:
            if isinstance(gradient, torch.Tensor):
                self._made(known, gradient, frozenset(found.leaves))
        with self._lock:
            known.leaves.update(found.leaves)

    def backward_failed(self, error: BaseException) -> None:
        """Record a backward pass that raised."""
        chain = callsite.user_chain()
        site = callsite.user_site()
        without_graph = isinstance(error, RuntimeError) and "does not require grad" in str(error)
        self.failed = Failure(now(), type(error).__name__, site, chain if without_graph else ())

    # -- cuts ----------------------------------------------------------------------------------

    def cut(
        self, way: Exit, sources: Any, made: Any, frame: FrameType | None, *, flat: bool = False
    ) -> None:
        """Record that `sources`, which require grad, were read into `made` without a graph.

        Args:
            way: the operation; a function of torch that called it counts instead.
            sources: the tensors that were read.
            made: the result, a tensor or several.
            frame: the caller.
            flat: the graph continues, with a derivative of zero.
        """
        if frame is None:
            return
        if inside_torch(frame):
            frame, called = entered_by(frame)
            if frame is None or called is None:
                return
            way = called
        known = self._cut_at(self.flat if flat else self.cuts, way, frame)
        self._fill(known, sources, made)

    def blind_use(
        self, sources: Any, made: Any, mode: str | Exit, entered: Site | None, frame: Any
    ) -> None:
        """Record that `made` was computed from `sources` while gradients were disabled.

        Args:
            sources: the tensors that were read.
            made: the result.
            mode: the context of the program, or the function of torch, that disabled them.
            entered: where it was entered.
            frame: the caller.
        """
        frame = outside_torch(frame)
        if frame is None:
            return
        known = self._cut_at(self.cuts, mode if isinstance(mode, Exit) else None, frame)
        known.mode = mode.how if isinstance(mode, Exit) else mode
        known.entered = entered
        self._fill(known, sources, made)

    def _cut_at(self, cuts: dict[object, Cut], way: Exit | None, frame: FrameType) -> Cut:
        how = "no-grad" if way is None else way.how
        frames = callsite.user_frames(frame)
        return self.record_at(cuts, how, frames, Cut, first=now(), how=how, exit=way)

    def _made(self, known: Cut, made: Any, behind: frozenset[int]) -> None:
        known.behind[id(made)] = behind
        known.made[id(made)] = refer(made)
        self.made[id(made)] = known

    def _fill(self, known: Cut, sources: Any, made: Any) -> None:
        known.again()
        if known.count > 2 and not any(listener.missing() for listener in list(self.listeners)):
            return
        if not _due(known.walked, known.count):
            known.partial = True
            return
        with torch._C.DisableTorchFunctionSubclass():
            found: Leaves = behind(sources)
            origins = frozenset((*found.leaves, *map(id, sources)))
            for one in made if isinstance(made, tuple) else (made,):
                if isinstance(one, torch.Tensor):
                    self._made(known, one, origins)
            with self._lock:
                known.walked += found.walked
                known.partial = known.partial or not found.complete
                known.leaves.update(found.leaves)
                for source in sources:
                    known.itself[id(source)] = refer(source)

    def written(self, target: Any, values: Any, frame: FrameType | None) -> None:
        """Record that `values` were written into `target` in place, without a graph."""
        found = [value for value in values if isinstance(value, torch.Tensor)]
        if not found:
            return
        for value in found:
            self.goes_on(value, target)
        if needs_grad(target):
            self.changed(WRITTEN, [target], frame)

    def goes_on(self, value: Any, target: Any) -> None:
        """Record that `target` holds `value`, if that was taken out of a graph."""
        maker = self.made.get(id(value))
        if maker is not None and maker.produced(value):
            self._made(maker, target, maker.behind[id(value)])

    def gave_data(self, tensor: Any, data: Any) -> None:
        """Record that `data` is the `.data` of `tensor`, which requires no grad."""
        identity = id(data)
        gone = functools.partial(self.data_of.pop, identity, None)
        self.data_of[identity] = refer(data, gone), refer(tensor)

    def original_of(self, data: Any) -> Any:
        """The tensor whose `.data` is `data`, or None."""
        known = self.data_of.get(id(data))
        return known[1]() if known is not None and known[0]() is data else None

    def went_on(self, tensor: Any, how: str, frame: FrameType) -> None:
        """Record a second exit on the line of the first: `.detach().numpy()`."""
        known = self.made[id(tensor)]
        if known.site is None or not known.produced(tensor) or known.how.endswith(how):
            return
        if known.site.code is not frame.f_code or known.site.line != frame.f_lineno:
            return
        if known.exit is not None and how in (".numpy()", ARRAY.how):
            known.exit = known.exit._replace(fix=NUMPY)  # NumPy continues from there
        if how.startswith(".") and known.how.startswith("."):
            known.how += how

    # -- steps and changes ---------------------------------------------------------------------

    def look_at_gradients(self) -> None:
        """Have all watches check gradients that the program itself has set."""
        for listener in list(self.listeners):
            listener.look_at_gradients()

    def stepped(self, optimizer: Any, frame: FrameType | None) -> None:
        """Record an optimizer's step."""
        self.look_at_gradients()
        frame = outside_torch(frame)
        if frame is None:
            return
        key = ("step", frame.f_code, frame.f_lasti)
        known = self.steps.get(key)
        if known is None:
            known = self.steps.setdefault(key, Step(callsite.user_site()))
        known.again()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in known.parameters:
                    known.parameters[id(parameter)] = refer(parameter)

    def changed(self, how: str, changed: Any, frame: FrameType | None) -> None:
        """Record that the tensors `changed` were frozen, replaced or cleared at `frame`."""
        frame = outside_torch(frame)
        if frame is None:
            return
        key = (how, frame.f_code, frame.f_lasti)
        known = self.changes.get(key)
        if known is None:
            known = self.changes.setdefault(key, Change(callsite.user_site(), how=how))
        known.again()
        for tensor in changed:
            if id(tensor) not in known.tensors:
                known.tensors[id(tensor)] = refer(tensor)


def _due(walked: int, count: int) -> bool:
    """Whether the `count`-th event of a call site is examined."""
    return walked < _WALKED or count & (count - 1) == 0


def needs_grad(tensor: Any) -> bool:
    """Whether `tensor` requires grad, without running code of a subclass."""
    return tensors.requires_grad(tensor)


def is_transformed(tensor: Any) -> bool:
    """Whether a transform of `torch.func` wraps `tensor`, also one that has ended (`vjp`)."""
    return isinstance(tensor, torch.Tensor) and bool(
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


CONTAINERS = (list, tuple)
_LOOKED_AT = 10_000


def sources(data: Any, depth: int = 3) -> list[Any]:
    """Tensors in `data` that require grad, at most `depth` containers deep."""
    if isinstance(data, torch.Tensor):
        return [data] if needs_grad(data) else []
    if type(data) in CONTAINERS and depth:
        return [found for item in data[:_LOOKED_AT] for found in sources(item, depth - 1)]
    return []


recorder: Recorder[Log] = Recorder(Log)


def current() -> Log | None:
    """The log that is being written; None while a compiler traces, or copies traced tensors."""
    return None if recorder.log is None or _compiling() or _tracing() else recorder.log


def noted(note: Callable[..., Any], *, before: bool = False) -> Callable[[Any], Any]:
    """Make a wrapper that records each call of a function of torch (see `recording.noted`)."""
    return recording.noted(current, note, before=before)


def caller() -> FrameType:
    """The frame that called the caller of this function."""
    return sys._getframe(2)
