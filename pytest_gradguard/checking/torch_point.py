"""A point in the space of a program's torch parameters: the loss there, and its gradient."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pytest_gradguard.checking.loss import number_of, refuse_change
from pytest_gradguard.checking.quotient import Precision
from pytest_gradguard.checking.reach import Reached
from pytest_gradguard.checking.scales import scales_of
from pytest_gradguard.checking.torch_state import State, Undo
from pytest_gradguard.runtime.frameworks.torch import engine
from pytest_gradguard.runtime.kernel import task_seeds

_SEED = 20_021
_AGAIN = "second time"
"""Part of torch's error for a graph that was freed."""


class TorchPoint:
    """The parameters of a closure and the dependence of its loss on them.

    Args:
        closure: computes the loss; it may run the backward pass itself.
        named: the parameters by name.
        reached: the closure's other objects.
        always_backward: run the backward pass after every forward pass, as ranks have to.

    Attributes:
        names: of the parameters.
    """

    def __init__(
        self,
        closure: Callable[[], Any],
        named: dict[str, Any],
        reached: Reached,
        *,
        always_backward: bool,
    ) -> None:
        self.names = list(named)
        self._closure = closure
        self._parameters = list(named.values())
        self._state = State(self._parameters, reached)
        self._always_backward = always_backward
        self._base: list[Any] = []
        self._scales: list[float] = []
        self._put_back: Undo = lambda: None
        self._returned: Any = None
        self._unit = 0.0
        self._moved = False

    def may_cast(self) -> bool:
        """Whether the parameters can be cast to double precision."""
        return self._state.may_cast()

    def is_shared(self) -> bool:
        """Whether other processes may read the parameters in place."""
        return self._state.is_shared()

    @contextlib.contextmanager
    def open(self, *, double: bool) -> Iterator[None]:
        """A block in which the loss can be evaluated; everything is restored at its end."""
        with self._state.kept(), contextlib.ExitStack() as stack:
            if double:
                stack.callback(self._cast_kept)
                stack.enter_context(self._state.double())
            self._moved = False
            self._put_back = stack.enter_context(self._state.kept())
            self._base = [_local(one).detach().clone() for one in self._parameters]
            self._scales = scales_of([one.double() for one in self._base])
            self._unit = max(torch.finfo(one.dtype).eps for one in self._parameters)
            yield

    def _cast_kept(self) -> None:
        """Cast tensors that the closure kept from runs in double precision, for its next one."""
        self._state.cast_new(Reached(self._closure).tensors)

    @property
    def precision(self) -> Precision:
        """The precision of the losses evaluated so far."""
        return Precision.of(self._unit)

    # -- the loss and its gradient -----------------------------------------------------------------

    def loss(self, direction: Sequence[Any], members: Sequence[int], length: float) -> float:
        """The loss `length` times `direction` away, for the parameters `members`."""
        __tracebackhide__ = True
        self.start(direction, members, length)
        return self.run(backward=self._always_backward)

    def gradient(self) -> tuple[float, list[Any]]:
        """The loss at the point itself, and the gradient of each parameter; None without one.

        Raises:
            ValueError: the closure changes the parameters.
        """
        __tracebackhide__ = True
        self.start()
        loss = self.run()
        for name, one, base in zip(self.names, self._parameters, self._base, strict=True):
            refuse_change(name, self._moved or torch.equal(_local(one).detach(), base))
        return loss, [_gradient_of(one) for one in self._parameters]

    def step(self) -> None:
        """Have an optimizer use the gradients without effect: checks inspect such steps."""
        torch.optim.SGD(self._parameters, lr=0.0).step()
        self._returned = None

    def start(
        self, direction: Sequence[Any] = (), members: Sequence[int] = (), length: float = 0.0
    ) -> None:
        """Prepare an evaluation, at the point itself or away from it."""
        self._put_back()
        self._state.clear_gradients()
        with torch.no_grad():
            for one, base in zip(self._parameters, self._base, strict=True):
                local = _local(one).detach()
                if not torch.equal(local, base):  # the point was moved
                    local.copy_(base)
            for index in members:
                local = _local(self._parameters[index]).detach()
                moved = direction[index].to(local.device)
                local.copy_(self._base[index] + length * moved)

    def run(self, *, backward: bool = True) -> float:
        """The loss at the point prepared by `start`."""
        __tracebackhide__ = True
        passes: list[Any] = []
        with torch.enable_grad(), task_seeds.seeding(_SEED):
            engine.subscribe(passes.append, lasting=True)
            try:
                loss = self._returned = self._closure()
            finally:
                engine.unsubscribe(passes.append)
            value = number_of(loss)
            if isinstance(loss, torch.Tensor):
                if loss.dtype.is_floating_point:
                    self._unit = max(self._unit, torch.finfo(loss.dtype).eps)
                if backward and loss.requires_grad and not self._arrived():
                    try:
                        loss.backward()
                    except RuntimeError as error:
                        if not passes or _AGAIN not in str(error):
                            raise  # otherwise the closure has run it, and the gradient is zero
        return value

    def _arrived(self) -> bool:
        """Whether the closure has run the backward pass itself."""
        gradients = (_gradient_of(one) for one in self._parameters)
        return any(one is not None and bool(one.any()) for one in gradients)

    # -- directions --------------------------------------------------------------------------------

    def direction(self, seed: int) -> list[Any]:
        """A random direction, equal on all ranks, scaled like the parameters."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for one, base, scale in zip(self._parameters, self._base, self._scales, strict=True):
            kind = torch.complex128 if base.is_complex() else torch.float64
            whole = torch.randn(one.shape, generator=generator, dtype=kind, device="cpu") * scale
            for row in self._state.padding.get(id(one), ()):
                whole[row] = 0
            made.append(_local_part(whole, one))
        return made

    def shares(self, gradients: Sequence[Any], direction: Sequence[Any]) -> list[float]:
        """The contribution of each parameter to the derivative along `direction`."""
        return [
            0.0 if gradient is None else _dot(gradient, along) / _copies(one)
            for gradient, along, one in zip(gradients, direction, self._parameters, strict=True)
        ]

    def is_split(self, index: int) -> bool:
        """Whether each rank holds only a part of that parameter."""
        return _is_distributed(self._parameters[index])

    def move(self, seed: int, length: float) -> None:
        """Move the point itself away from a possible kink."""
        self._moved = True
        for base, along in zip(self._base, self.direction(seed), strict=True):
            base.add_((length * along).to(base.device))


def _gradient_of(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient is None:
        return None
    if _is_distributed(gradient):
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(placements=parameter.placements)
        gradient = gradient.to_local()
    gradient = gradient.detach()
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient.clone()


def _dot(gradient: Any, along: Any) -> float:
    along = along.to(gradient.device)
    if gradient.is_complex():
        return float((gradient.conj() * along).real.sum())
    return float((gradient.double() * along).sum())


# -- parameters that are split between ranks ------------------------------------------------------


def _is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def _local(tensor: Any) -> Any:
    return tensor.to_local() if _is_distributed(tensor) else tensor


def _copies(parameter: Any) -> int:
    """How many ranks hold the same part of a parameter: the parts of all ranks are summed."""
    if not _is_distributed(parameter):
        return 1
    mesh = parameter.device_mesh
    sizes = (
        mesh.size(index)
        for index, placement in enumerate(parameter.placements)
        if not placement.is_shard()
    )
    return math.prod(sizes)


def _local_part(whole: Any, parameter: Any) -> Any:
    if not _is_distributed(parameter):
        return whole
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = parameter.device_mesh, parameter.placements
    shape, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
    for dimension, (size, start) in enumerate(zip(shape, offset, strict=True)):
        whole = whole.narrow(dimension, min(start, whole.shape[dimension]), size)
    return whole
