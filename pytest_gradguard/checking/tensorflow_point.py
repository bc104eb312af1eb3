"""A point in the space of a program's TensorFlow variables: the loss there, and its gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pytest_gradguard.checking.loss import number_of, refuse_change
from pytest_gradguard.checking.quotient import Precision
from pytest_gradguard.checking.reach import Reached
from pytest_gradguard.checking.scales import scales_of
from pytest_gradguard.runtime.frameworks.tensorflow.tensors import variable_of
from pytest_gradguard.runtime.kernel import generators, task_seeds

_SEED = 20_021


class TensorFlowPoint:
    """The variables of a closure and the dependence of its loss on them; like `TorchPoint`.

    Variables cannot be cast: the loss is computed in the precision of the program.

    Args:
        closure: computes the loss, or the loss and its gradients if it has a tape of its own.
        named: the variables by name.
        reached: the closure's other objects.
    """

    def __init__(self, closure: Callable[[], Any], named: dict[str, Any], reached: Reached) -> None:
        self.names = list(named)
        self._closure = closure
        self._variables = [variable_of(one) for one in named.values()]
        others = (one for layer in reached.modules for one in getattr(layer, "variables", ()))
        found = {id(one): one for one in (*self._variables, *map(variable_of, others))}
        self._kept = [one for one in found.values() if isinstance(one, tf.Variable)]
        self._before: list[Any] = []
        self._base: list[Any] = []
        self._scales: list[float] = []
        self._gradients: list[Any] = []
        self._unit = 0.0
        self._moved = False

    def may_cast(self) -> bool:
        """False: variables keep their dtype."""
        return False

    def is_shared(self) -> bool:
        """False: other processes cannot read the variables in place."""
        return False

    @contextlib.contextmanager
    def open(self, *, double: bool) -> Iterator[None]:
        """A block in which the loss can be evaluated; everything is restored at its end."""
        restore = generators.capture()
        self._moved = False
        self._before = [one.numpy() for one in self._kept]
        self._base = [one.numpy() for one in self._variables]
        self._scales = scales_of(self._base)
        self._unit = max(float(np.finfo(_dtype(one)).eps) for one in self._base)
        try:
            yield
        finally:
            self._put_back()
            restore()

    @property
    def precision(self) -> Precision:
        """The precision of the losses evaluated so far."""
        return Precision.of(self._unit)

    def loss(self, direction: Sequence[Any], members: Sequence[int], length: float) -> float:
        """The loss `length` times `direction` away, for the variables `members`."""
        __tracebackhide__ = True
        self.start()
        for index in members:
            moved = self._base[index] + length * direction[index]
            self._variables[index].assign(moved.astype(self._base[index].dtype))
        return self.run()

    def gradient(self) -> tuple[float, list[Any]]:
        """The loss at the point itself, and the gradient of each variable; None without one.

        Raises:
            ValueError: the closure changes the variables.
        """
        __tracebackhide__ = True
        self.start()
        loss = self.run()
        for name, one, base in zip(self.names, self._variables, self._base, strict=True):
            refuse_change(name, self._moved or np.array_equal(one.numpy(), base))
        return loss, [
            None if one is None else np.asarray(tf.convert_to_tensor(one))
            for one in self._gradients
        ]

    def step(self) -> None:
        """Do nothing: no check inspects the steps of these optimizers."""

    def _put_back(self) -> None:
        for one, value in zip(self._kept, self._before, strict=True):
            one.assign(value)

    def start(self) -> None:
        """Prepare an evaluation at the point itself."""
        self._put_back()
        for one, base in zip(self._variables, self._base, strict=True):
            one.assign(base)
        generators.seed(_SEED)  # TensorFlow's has no state that could be restored exactly

    def run(self) -> float:
        """The loss at the variables' current values."""
        __tracebackhide__ = True
        with task_seeds.seeding(_SEED), tf.GradientTape() as tape:
            tape.watch(self._variables)
            loss = self._closure()
        gradients: Any = None
        if isinstance(loss, tuple) and len(loss) == 2:
            loss, gradients = loss
            gradients = list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]
            if len(gradients) != len(self._variables):
                raise ValueError(
                    f"check_gradients: the closure returned {len(gradients)} gradients for "
                    f"{len(self._variables)} variables"
                )
        if isinstance(loss, tf.Tensor):
            if loss.dtype.is_floating:
                self._unit = max(self._unit, float(np.finfo(loss.dtype.as_numpy_dtype).eps))
            if gradients is None:
                gradients = tape.gradient(loss, self._variables)
            loss = loss.numpy()
        self._gradients = gradients or [None] * len(self._variables)
        return number_of(loss)

    def direction(self, seed: int) -> list[Any]:
        """A random direction, scaled like the variables."""
        draw = np.random.RandomState(seed)
        return [
            scale * draw.standard_normal(base.shape)
            for base, scale in zip(self._base, self._scales, strict=True)
        ]

    def shares(self, gradients: Sequence[Any], direction: Sequence[Any]) -> list[float]:
        """The contribution of each variable to the derivative along `direction`."""
        return [
            0.0 if one is None else float(np.sum(one.astype(np.float64) * along))
            for one, along in zip(gradients, direction, strict=True)
        ]

    def is_split(self, index: int) -> bool:
        """False: ranks hold whole variables."""
        return False

    def move(self, seed: int, length: float) -> None:
        """Move the point itself away from a possible kink."""
        self._moved = True
        for index, along in enumerate(self.direction(seed)):
            base = self._base[index]
            self._base[index] = (base + length * along).astype(base.dtype)


def _dtype(value: Any) -> Any:
    return value.dtype if np.issubdtype(value.dtype, np.floating) else np.float32
