"""One watched torch tensor: its last known state, and the range of its gradient's values.

References are weak. The state is kept as plain values, so that a tensor that no longer exists at
the end of the watch still gets its reason.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from pytest_gradguard.details import Details
from pytest_gradguard.gradients import watched
from pytest_gradguard.gradients.recording import now
from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.references import refer

_MEASURED = (torch.Tensor, torch.nn.Parameter)
_compiling = torch.compiler.is_compiling
_plain = torch._C.DisableTorchFunctionSubclass


class State(NamedTuple):
    """The last known properties of a tensor."""

    requires_grad: bool
    is_leaf: bool
    retains_grad: bool
    differentiable: bool
    inference: bool
    made_by: str
    description: Details


def state_of(tensor: Any) -> State:
    """The current properties of `tensor`."""
    with _plain():
        history = tensor.grad_fn
        return State(
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
            retains_grad=tensor.retains_grad,
            differentiable=tensor.is_floating_point() or tensor.is_complex(),
            inference=tensor.is_inference(),
            made_by="" if history is None else type(history).__name__,
            description={} if uninitialised(tensor) else tensors.describe(tensor),
        )


class Entry(watched.Entry):
    """One watched tensor.

    Attributes:
        received_late: whether a gradient arrived after another object had taken the name.
        state: its properties in the last backward pass; before the first, at the last check.
        thawed: whether it required grad only after the first check.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        super().__init__(name)
        self.ref = lambda: tensor
        self.description = {}
        self.state: State | None = None
        self.thawed = False
        self.since = now()
        self.current = True
        self.received_late = False
        self.measured = False
        self.bounds: tuple[Any, Any] | None = None
        self.hook: Any = None
        self._old: tuple[Any, int, tuple[float, ...]] | None = None

    def begin(self, arrived: list[Entry], *, appeared: bool, measure: bool) -> None:
        """Begin to watch, and keep only a weak reference from now on."""
        tensor = self.ref()
        self.ref = refer(tensor)
        if not appeared:
            self._know_old(tensor)
        self.look()
        self.watch(arrived, measure=measure)

    def _know_old(self, tensor: Any) -> None:
        """Remember the current gradient as one from before the watch."""
        gradient = gradient_of(tensor)
        self._old = (
            None
            if gradient is None
            else (refer(gradient), gradient._version, _shared_content(gradient))
        )

    def look(self, *, state: bool = True) -> None:
        """Check whether `.grad` is new, and update `state`."""
        tensor = self.ref()
        if tensor is None:
            return
        if self.state is None or (state and not self.received):
            before, self.state = self.state, state_of(tensor)
            self.description = self.state.description
            if before is not None and self.state.requires_grad and not before.requires_grad:
                self.thawed = True
        if not self.received and self.current:
            gradient = gradient_of(tensor)
            if gradient is None or self._is_old(gradient):
                return
            if self._old and self._old[0]() is gradient and largest_of(gradient) == 0:
                self._know_old(tensor)  # it was cleared in place
            else:
                self.take()

    def _is_old(self, gradient: Any) -> bool:
        """Whether `gradient` is the one from before the watch, unchanged."""
        if self._old is None:
            return False
        reference, version, shared = self._old
        if reference() is not gradient or gradient._version != version:
            return False
        return not shared or _shared_content(gradient) == shared

    def take(self) -> None:
        """Record that a gradient arrived."""
        if self.current:
            self.received = True
        else:
            self.received_late = True

    def watch(self, arrived: list[Entry], *, measure: bool) -> None:
        """Register a hook that reports gradients, if the tensor can have one now."""
        tensor = self.ref()
        if tensor is None or self.hook is not None:
            return
        with _plain():
            if not tensor.requires_grad or not tensor.is_leaf or uninitialised(tensor):
                return

        def hook(parameter: Any) -> None:
            # torch also calls it if an operation gave no gradient (None) for this input.
            try:
                gradient = gradient_of(parameter)
                if gradient is None or (not self.received and self._is_old(gradient)):
                    return
                self.take()
                arrived.append(self)
                if measure and not _compiling():  # now, while the gradient is in the cache
                    keep_extremes(self, gradient)
            except Exception as error:
                fault(error)

        with _plain():
            self.hook = tensor.register_post_accumulate_grad_hook(hook)
            hooks = tensor._post_accumulate_grad_hooks
            if measure:
                _make_bounds(self, tensor)
        for key in [key for key in hooks if key != self.hook.id]:
            hooks[key] = hooks.pop(key)  # after ours: a user's hook may consume the gradient

    def look_after_swap(self) -> None:
        """Update the remembered gradient after `swap_tensors` has moved its content."""
        tensor = self.ref()
        if tensor is not None and self._old and self._old[0]() is gradient_of(tensor):
            self._know_old(tensor)

    def release(self) -> None:
        """Remove the hook."""
        if self.hook is None:
            return
        self.hook.remove()
        self.hook = None
        tensor = self.ref()
        if tensor is not None:
            with _plain():  # torch ignores a hook added to an old dict after a swap
                if not tensor._post_accumulate_grad_hooks:
                    tensor._post_accumulate_grad_hooks = None


def gradient_of(tensor: Any) -> Any:
    """`tensor.grad`, without torch's warning that a non-leaf keeps none."""
    with _plain():
        if uninitialised(tensor) or not (tensor.is_leaf or tensor.retains_grad):
            return None
        return tensor.grad


def uninitialised(tensor: Any) -> bool:
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def _make_bounds(entry: Entry, like: Any) -> None:
    """Allocate the minimum and maximum of a gradient before the first backward pass.

    Memory that is allocated during a backward pass and kept fragments the activations' free memory:
    measured, 3 % of a training step.
    """
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    low, high = (torch.empty((), dtype=dtype, device=like.device) for _ in range(2))
    entry.bounds = (low, high)


def keep_extremes(entry: Entry, gradient: Any) -> None:
    """Keep the range of a gradient's values on its device, without synchronizing."""
    if _extremes(gradient, entry) is not None:
        entry.measured = True


def _extremes(gradient: Any, entry: Entry | None = None) -> Any:
    """Minimum and maximum of `gradient` as tensors, written to `entry.bounds` if given.

    None if torch cannot order its values.
    """
    plain = gradient._values() if gradient.layout is torch.sparse_coo else gradient
    if type(plain) not in _MEASURED or plain.is_meta or not plain.numel():
        return None
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        if entry is None:
            return torch.aminmax(plain)
        bounds = entry.bounds
        if bounds is None or bounds[0].dtype != plain.dtype or bounds[0].device != plain.device:
            _make_bounds(entry, plain)
        # NaN comes through; ten times as fast as a norm
        return torch.aminmax(plain, out=entry.bounds)
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # torch has no order for such tensors
    finally:
        torch._C._set_grad_enabled(enabled)


def _shared_content(gradient: Any) -> tuple[float, ...]:
    """Sums that change if another process writes to `gradient`; empty if none can.

    The version counter counts only writes of this process.
    """
    with _plain():
        if gradient.layout is not torch.strided or gradient.device.type != "cpu":
            return ()
        if not gradient.is_shared():
            return ()
        content = [gradient.sum(dtype=torch.float64), *(_extremes(gradient) or ())]
        return tuple(float(one) for one in torch.nan_to_num(torch.stack(content)))


def largest(entry: Entry) -> float | None:
    """Largest absolute value of the last gradient of `entry`; None if unknown.

    Changes of `.grad` by the program count, unless they cleared it in place.
    """
    came, stands = _came_and_stands(entry)
    return came if stands is None or (stands == 0 and came is not None) else stands


def cleared_in_place(entry: Entry) -> bool:
    """Whether a gradient other than zero arrived and `.grad` is all zero now."""
    came, stands = _came_and_stands(entry)
    return stands == 0 and bool(came)


def _came_and_stands(entry: Entry) -> tuple[float | None, float | None]:
    """Largest absolute values of the last gradient and of `.grad`."""
    came = _largest(entry.bounds) if entry.measured else None
    tensor = entry.ref()
    gradient = None if tensor is None else gradient_of(tensor)
    return came, None if gradient is None else largest_of(gradient)


def largest_of(gradient: Any) -> float | None:
    """Largest absolute value of `gradient`; None if unknown."""
    return _largest(_extremes(gradient))


def _largest(bounds: Any) -> float | None:
    if bounds is None:
        return None
    low, high = (float(bound) for bound in bounds)
    return high if math.isnan(high) else max(abs(low), abs(high))
