"""PyTorch: function modes that follow what is computed from certain tensors.

Shared by the guard's modes: which functions have a derivative, marks of tensors, and the place of
such a mode in a thread's stack of modes.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves

from pytest_gradguard.runtime.kernel.by_identity import ByIdentity

_CONSTANT = frozenset(
    (
        *("detach", "detach_", "bernoulli", "sign", "sgn", "floor", "ceil", "round", "trunc"),
        *("zeros_like", "ones_like", "empty_like", "full_like"),
        *("rand_like", "randn_like", "randint_like"),
        *("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"),
    )
)
"""Functions whose result has a zero derivative, or none."""
_CUT = frozenset((torch.Tensor.data.__get__, torch.Tensor.grad.__get__))


def is_constant(func: Any) -> bool:
    """Whether the result of `func` has no derivative by its arguments."""
    return getattr(func, "__name__", "") in _CONSTANT or func in _CUT


def tensors_in(items: Any) -> list[Any]:
    """The tensors in plain containers."""
    return [one for one in tree_leaves(items) if isinstance(one, torch.Tensor)]


def has_derivative(tensor: Any) -> bool:
    """Whether `tensor` is of a differentiable type."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


_Mark = TypeVar("_Mark")


class Marks(Generic[_Mark]):
    """The marks of tensors, while these live."""

    def __init__(self) -> None:
        self._known: ByIdentity[frozenset[_Mark]] = ByIdentity()
        self.clear = self._known.clear

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, tensor: Any, marks: frozenset[_Mark]) -> None:
        """Mark `tensor`, weakly."""
        self._known[tensor] = marks | self.of(tensor)

    def of(self, tensor: Any) -> frozenset[_Mark]:
        """The marks of `tensor`."""
        return self._known.get(tensor) or frozenset()

    def drop(self, tensor: Any) -> None:
        """Remove the marks of `tensor`."""
        self._known.pop(tensor)

    def all(self) -> frozenset[_Mark]:
        """The marks of all live tensors."""
        return frozenset().union(*self._known.values())


# -- the stack of modes --------------------------------------------------------------------------


def push_below(mode: Any) -> None:
    """Put `mode` on this thread's stack of function modes.

    It goes below the program's own modes, which end in order, and above a default device, which
    torch expects to be the lowest.
    """
    above = _pop_all()
    if above and isinstance(above[-1], DeviceContext):
        _push_mode(above.pop())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def take_off(mode: Any) -> None:
    """Remove `mode` from this thread's stack, if it is on it."""
    for other in reversed(_pop_all()):
        if other is not mode:
            _push_mode(other)


def _pop_all() -> list[Any]:
    return [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
