"""The events for notes: torch's engine and optimizers, tapes, and Keras."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard import imports
from pytest_gradguard.comparing import places
from pytest_gradguard.comparing.noting import Noting
from pytest_gradguard.runtime.kernel import calls, inline
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.patching import Patch

_KERAS = "keras.src.optimizers.base_optimizer"
_TAPE = "tensorflow.python.eager.backprop"


@contextmanager
def listening(noting: Noting) -> Iterator[None]:
    """A block in which `noting` gets these events."""
    awaited: list[Callable[[], object]] = []
    undo: list[Callable[[], object]] = []
    for module, listen in (
        ("torch.optim.optimizer", _torch),
        (_TAPE, _tapes),
        (_KERAS, _keras),
    ):
        inline.once_imported(module, functools.partial(listen, noting, undo), awaited)

    def begun(_: Call) -> None:
        if noting.is_here():
            noting.handing_out(sys._getframe(1))

    calls.when_begun.append(begun)
    try:
        yield
    finally:
        calls.when_begun.remove(begun)
        for callback in awaited:
            imports.forget(callback)
        for one in reversed(undo):
            one()


# -- torch -----------------------------------------------------------------------------------------


def _torch(noting: Noting, undo: list[Callable[[], object]]) -> None:
    from pytest_gradguard.runtime.frameworks.torch import engine, steps

    def backward(backward: engine.Backward) -> engine.End | None:
        return functools.partial(ended, backward) if noting.is_here() else None

    def ended(backward: engine.Backward, returned: Any, raised: BaseException | None) -> None:
        if raised is None:
            if backward.accumulates:
                noting.backward(sys._getframe(1))
            else:
                noting.gradients(returned)

    def stepping(optimizer: Any) -> None:
        if noting.is_here():
            noting.stepping(sys._getframe(1), _parameters(optimizer))

    def stepped(optimizer: Any) -> None:
        if noting.is_here():
            noting.stepped(sys._getframe(1), _parameters(optimizer))

    engine.subscribe(backward, lasting=True)
    steps.before.subscribe(stepping, lasting=True)
    steps.after.subscribe(stepped, lasting=True)
    undo += [
        lambda: engine.unsubscribe(backward),
        lambda: steps.before.unsubscribe(stepping),
        lambda: steps.after.unsubscribe(stepped),
    ]


def _parameters(optimizer: Any) -> list[tuple[str, Any]]:
    found = []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [
            f"param_groups[{number}]['params'][{index}]" for index in range(len(group["params"]))
        ]
        found += list(zip(names, group["params"], strict=False))
    return found


# -- TensorFlow and Keras --------------------------------------------------------------------------


def _tapes(noting: Noting, undo: list[Callable[[], object]]) -> None:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            if noting.is_here():
                attempt(_note_gradients, noting, found)
            return found

        return gradient

    _patched(Patch(sys.modules[_TAPE].GradientTape, "gradient", wrap), undo)


def _patched(patch: Patch, undo: list[Callable[[], object]]) -> None:
    patch.apply()
    undo.append(patch.undo)


def _note_gradients(noting: Noting, found: Any) -> None:
    flat = sys.modules["tensorflow"].nest.flatten(found)
    if all(one is None or hasattr(one, "numpy") or hasattr(one, "dense_shape") for one in flat):
        noting.gradients(flat)


def _keras(noting: Noting, undo: list[Callable[[], object]]) -> None:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            here = noting.is_here() and _are_eager(grads)
            variables = list(trainable_variables or getattr(self, "_trainable_variables", ()))
            if here:
                attempt(noting.applied, True, _named(variables, grads))
            result = original(self, grads, trainable_variables)
            if here:
                attempt(noting.applied, False, _named(variables, variables))
            return result

        return apply

    _patched(Patch(sys.modules[_KERAS].BaseOptimizer, "apply", wrap), undo)


def _are_eager(gradients: Any) -> bool:
    tensorflow: Any = sys.modules.get("tensorflow")
    return tensorflow is not None and tensorflow.executing_eagerly()


def _named(variables: list[Any], values: Any) -> dict[str, Any]:
    return {
        f"{index} {places.name_of(one)}": value
        for index, (one, value) in enumerate(zip(variables, values, strict=False))
    }
