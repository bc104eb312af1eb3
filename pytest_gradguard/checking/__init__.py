"""Checks that a program's gradient is the derivative of its loss, however it is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_gradguard.checking.check import Checked

__all__ = ["check_gradients"]


def check_gradients(
    closure: Callable[[], Any],
    parameters: Any,
    *,
    rtol: float = 1e-3,
    directions: int = 2,
    eps: float | None = None,
    reduce: Literal["mean", "sum"] = "mean",
) -> Checked | None:
    """Compare the gradient of a loss with difference quotients of that loss.

    The loss is evaluated a few times near the current parameters, each time with the current states
    of the random generators. It is computed in double precision: the parameters, and all other
    tensors that the closure refers to, are cast in place, and restored. If the program cannot run
    in double precision, its own precision is used, with a fitting tolerance. Afterwards parameters,
    gradients, buffers, modes and generators are as before.

    With torch.distributed, every rank has to call it.

    Args:
        closure: computes the loss, with any workers, ranks or collectives; without arguments. It
            may run the backward pass itself; otherwise that is run from its result. It makes no
            optimizer step. In TensorFlow, it runs under a tape; if it has a tape of its own, it
            returns the loss and the gradients.
        parameters: an `nn.Module`, a Keras model, a tensor or variable, or a dict, list or iterator
            of these.
        rtol: the relative difference up to which two derivatives are equal.
        directions: how many random directions are tried.
        eps: the step, relative to the size of the parameters.
        reduce: how the ranks' losses combine to the loss whose gradient they leave.

    Returns:
        How it was checked, if the gradient is right; None if gradguard is disabled.

    Raises:
        GradGuardError: the gradient is wrong (GG115): the parameters with a wrong part, both
            derivatives of each, and the findings that explain it.
        ValueError: there is nothing to check, or the loss is not one number, not finite, or not
            the same each time.
        TypeError: an argument is of a wrong type.
    """
    __tracebackhide__ = True
    from pytest_gradguard.checking.check import check

    return check(closure, parameters, rtol=rtol, directions=directions, eps=eps, reduce=reduce)
