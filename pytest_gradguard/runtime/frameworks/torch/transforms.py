"""PyTorch: computations of tasks without the caller's derivatives, followed to their use.

The transforms of `torch.func` belong to the thread that entered them: in other threads, tensors
that they wrap count as constants. The tangents of forward mode apply in every thread, and are not
pickled. A function mode follows computations with such tensors, where the tasks run and then in the
calling thread. It is an error only if the program takes the derivative of a result: a printed
metric lacks nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_gradguard.runtime.frameworks.torch.following import (
    Marks,
    has_derivative,
    is_constant,
    push_below,
    take_off,
    tensors_in,
)
from pytest_gradguard.runtime.frameworks.torch.tensors import has_tangent
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_functorch: Any = torch._C._functorch
_forward_ad: Any = torch.autograd.forward_ad
_compiling = torch.compiler.is_compiling

GRAD, JVP, VMAP, TANGENT = "grad", "jvp", "vmap", "tangent"
"""The kinds of transforms, as torch calls them, and a tangent of forward mode."""
_KINDS = {"Grad": GRAD, "Jvp": JVP, "Vmap": VMAP}

_UNPACK = "_unpack_dual"


class Loss:
    """The derivatives that the tasks of one call lacked, while anything refers to them.

    Attributes:
        call: the call; None in a worker process.
        extent: the mode that follows the calling thread until it takes no more derivatives.
        kinds: the kinds of missing derivatives.
        listener: called with the loss, and a kind of derivative that lacks a part, once the program
            takes that.
        tasks: how many batches computed so, by task and the path to the tensor used.
        duals: the tensors whose tangents were missing.
    """

    def __init__(
        self,
        call: Any = None,
        listener: Callable[[Loss, str], None] | None = None,
        extent: Any = None,
    ) -> None:
        self.call = call
        self.extent = extent
        self.kinds: set[str] = set()
        self.listener = listener
        self.tasks: dict[Any, int] = {}
        self.duals: list[Any] = []

    def of(self, kind: str, tensor: Any) -> None:
        """Record that a task has used `tensor` of a transform of that kind."""
        self.kinds.add(kind)
        if kind in (JVP, TANGENT) and not any(tensor is one for one in self.duals):
            self.duals.append(tensor)

    def reaches(self, kinds: Iterable[str]) -> None:
        """Report that the program takes a derivative of these kinds of a result that lacks one.

        Tasks may take derivatives of their own of it, which lack nothing; and `jvp` also wraps
        arguments by which it takes no derivative.
        """
        if self.listener is None or threading.get_ident() != self.extent.thread:
            return
        for kind in self.kinds.intersection(kinds):
            if kind != JVP or any(map(has_tangent, self.duals)):
                listener, self.listener = self.listener, None
                listener(self, kind)
                break


_lost: Marks[Loss] = dropped_at_end(Marks())
"""The tensors that were computed without a derivative."""
_NONE: frozenset[Loss] = frozenset()
mark, losses_of = _lost.add, _lost.of


Levels = tuple[tuple[int, str], ...]
"""The active transforms of a thread, from the outermost: their levels and kinds."""


def levels() -> Levels:
    """The active transforms of this thread."""
    found = (
        (one.level(), _KINDS.get(one.key().name))
        for one in _functorch.get_interpreter_stack() or ()
    )
    return tuple((level, kind) for level, kind in found if kind is not None)


def forward_mode() -> bool:
    """Whether forward mode is active, which applies to all threads."""
    return bool(_forward_ad._current_level >= 0)


def none_active() -> bool:
    """Whether no derivative that workers may lack is taken in this thread."""
    return _functorch.peek_interpreter_stack() is None and not forward_mode()


def level_of(tensor: Any) -> int:
    """The level of the transform that `tensor` belongs to; below 1: none."""
    level: int = _functorch.maybe_get_level(tensor)
    return level


def is_wrapped(item: Any) -> bool:
    """Whether `item` is a tensor of an active transform."""
    return issubclass(type(item), torch.Tensor) and level_of(item) > 0


# -- following -----------------------------------------------------------------------------------


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Follows computations with tensors that lack a derivative.

    Tensors left from an earlier derivative are constants in the next one, even in one thread.

    Args:
        loss: records the use where tasks run; None in the caller's own thread.
        kinds: the caller's transforms.
        given: the ids of tensors known to belong to these, not to the task's own.
    """

    def __init__(
        self, loss: Loss | None = None, kinds: Levels = (), given: Container[int] = ()
    ) -> None:
        super().__init__()
        self._loss = loss
        self._extent = self if loss is None else loss.extent
        self.thread = threading.get_ident()
        self._kinds = dict(kinds)
        self._given = given
        self.used: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _compiling():
            try:
                if _lost or self._loss is not None:
                    self._follow(func, args, kwargs or {}, result)
            except Exception as error:
                fault(error)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if is_constant(func):
            return
        losses = _NONE
        for tensor in tensors_in((args, kwargs)):
            losses |= self._losses_of(tensor)
        if not losses:
            return
        if getattr(func, "__name__", "") == _UNPACK:
            for loss in losses:
                loss.reaches((JVP, TANGENT))
        if not torch.is_grad_enabled() and all(loss.kinds == {GRAD} for loss in losses):
            return
        for tensor in tensors_in(args[:1] if result is None else result):
            if has_derivative(tensor):
                mark(tensor, losses)
                while level_of(tensor) > 0:  # its transform ends before it is used
                    tensor = _functorch.get_unwrapped(tensor)
                    mark(tensor, losses)

    def _losses_of(self, tensor: Any) -> frozenset[Loss]:
        losses = losses_of(tensor)
        if losses:
            losses = frozenset(one for one in losses if one.extent is self._extent)
        if self._loss is None:
            return losses
        depth = 0
        if id(tensor) not in self._given:
            own = _functorch.peek_interpreter_stack()
            depth = 0 if own is None else own.level()
        inner = tensor
        while (level := level_of(inner)) > depth:
            kind = self._kinds.get(level)
            if kind == JVP or (kind == GRAD and inner.requires_grad and torch.is_grad_enabled()):
                self.used.add(id(tensor))
                self._loss.of(kind, tensor)
                losses |= {self._loss}
            inner = _functorch.get_unwrapped(inner)
        return losses


class Watch:
    """Follows what this thread computes, from now to `end`, without the caller's transforms.

    Args:
        loss: records the use.
        kinds: the caller's transforms.
        given: the ids of tensors known to belong to these, not to the task's own.
    """

    def __init__(self, loss: Loss, kinds: Levels = (), given: Container[int] = ()) -> None:
        self._mode = _Following(loss, kinds, given)
        self._mode.__enter__()

    def end(self) -> set[int]:
        """Stop following; return the ids of the caller's tensors that were used."""
        self._mode.__exit__(None, None, None)
        return self._mode.used


class _Arrived(threading.local):
    loss: Loss | None = None


_arrived = _Arrived()


def without_tangent(rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild, in a worker process, a tensor that had a tangent; called by unpickling."""
    tensor = rebuild(*arguments)
    try:
        loss = _arrived.loss
        if loss is None:
            loss = _arrived.loss = Loss()
        loss.of(TANGENT, tensor)
        mark(tensor, frozenset((loss,)))
    except Exception as error:
        fault(error)
    return tensor


def arrived() -> Loss | None:
    """The tensors that came without their tangents since the last call."""
    loss, _arrived.loss = _arrived.loss, None
    return loss


# -- the calling thread --------------------------------------------------------------------------


class _Caller(threading.local):
    mode: _Following | None = None


_caller = _Caller()


def follow() -> Any:
    """Follow what this thread computes, until it takes no more derivatives."""
    _patches.apply()
    if _caller.mode is None:
        _caller.mode = _Following()
        push_below(_caller.mode)
    return _caller.mode


def _stop_following() -> None:
    """Stop following this thread."""
    mode, _caller.mode = _caller.mode, None
    take_off(mode)


def _level_ended(*_: Any, **__: Any) -> None:
    if not _compiling() and _caller.mode is not None and none_active():
        _stop_following()


def _differentiated(gradients: Any, outputs: Any, *_: Any, **__: Any) -> None:
    if not _compiling() and _lost:
        for loss in _NONE.union(*map(losses_of, outputs)):
            loss.reaches((GRAD,))


def _make() -> list[Patch]:
    eager: Any = sys.modules.get("torch._functorch.eager_transforms")
    vmap: Any = sys.modules.get("torch._functorch.vmap")
    if eager is None or vmap is None:
        return []
    return [
        observe(eager, "_autograd_grad", after=_differentiated),
        observe(eager, "_grad_decrement_nesting", after=_level_ended),
        observe(eager, "_jvp_decrement_nesting", after=_level_ended),
        observe(vmap, "_vmap_decrement_nesting", after=_level_ended),
        observe(_forward_ad, "exit_dual_level", after=_level_ended),
    ]


_patches = LatePatches(_make)


def _end() -> None:
    if _caller.mode is not None:
        _stop_following()


watching.at_end(_end)
