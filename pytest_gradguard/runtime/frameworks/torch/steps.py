"""Torch's optimizers: the one place that observes their steps and reports them.

Torch calls global hooks before and after each step. It has one hook of ours for each of the two,
while there are subscribers.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import engine
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.faults import fault, theirs_only
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

Listener = Callable[[Any], None]
"""Called with the optimizer."""


class _Steps(Subscribers[Listener]):
    """The steps of all torch optimizers, from torch's own hook.

    A failure of a listener becomes a warning. Findings are raised after all listeners were called,
    and so are the errors that a listener raises for a mistake of the user.

    Args:
        register: torch's function that registers a global hook.
    """

    def __init__(self, register: str) -> None:
        super().__init__(self)
        self._register = register
        self._hook: Any = None

    def apply(self) -> None:
        """Register torch's hook."""
        if self._hook is None:
            optim: Any = sys.modules["torch.optim.optimizer"]
            self._hook = getattr(optim, self._register)(self._step)

    def undo(self) -> None:
        """Remove torch's hook; during a step, when torch iterates over its hooks, do so later."""
        if self._hook is not None and _in_a_step():
            engine.subscribe(self._remove_hook, lasting=True)
        else:
            self._remove_hook()

    def _remove_hook(self, _: engine.Backward | None = None) -> None:
        """Remove torch's hook, if there are no subscribers."""
        with self._lock:
            engine.unsubscribe(self._remove_hook)
            if self._hook is not None and not self.now:
                self._hook.remove()
                self._hook = None

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        __tracebackhide__ = True
        _know(optimizer)
        raised: Exception | None = None
        for one in self.entries:
            try:
                one.listener(optimizer)
            except Exception as error:
                raised = raised or _to_be_raised(error, one.raises)
        if raised is not None:
            self._remove_hook()  # torch calls no further hooks
            with theirs_only:
                raise raised


def _in_a_step() -> bool:
    """Whether a listener is calling."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _Steps._step.__code__:
        frame = frame.f_back
    return frame is not None


def caller() -> FrameType:
    """The frame that called the hook, inside torch; for listeners."""
    return sys._getframe(3)


def parameters_of(owner: Any) -> list[Any]:
    """The parameters of a module, or those that an optimizer holds."""
    if isinstance(owner, sys.modules["torch"].nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


_known: ByIdentity[Callable[[], Any]] = dropped_at_end(ByIdentity())
"""The optimizers that have stepped, or that were found by a search."""


def _know(optimizer: Any) -> None:
    if _known.get(optimizer) is None:
        _known[optimizer] = weakref.ref(optimizer)


def held(*, search: bool = False) -> set[int]:
    """The ids of the parameters that optimizers hold.

    Args:
        search: also find optimizers that have not stepped yet, among all objects of the process.
    """
    if search:
        kind = sys.modules["torch.optim.optimizer"].Optimizer
        for one in gc.get_objects():
            if issubclass(type(one), kind) and "param_groups" in vars(one):
                _know(one)
    optimizers = filter(None, [reference() for reference in _known.values()])
    return {id(parameter) for one in optimizers for parameter in parameters_of(one)}


def _to_be_raised(error: Exception, raises: tuple[type[Exception], ...]) -> Exception | None:
    """`error`, if it is meant for the user; a fault of the guard becomes a warning."""
    if isinstance(error, raises):
        return error
    try:
        fault(error)
    except Exception as finding:
        return finding
    return None


before = _Steps("register_optimizer_step_pre_hook")
after = _Steps("register_optimizer_step_post_hook")
