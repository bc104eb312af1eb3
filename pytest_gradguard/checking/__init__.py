"""Checks that the gradient of a program is the derivative of its loss, however that is computed."""

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

    The loss is evaluated a few times near the present parameters, with the random generators as
    they are now each time. This is done in double precision: the parameters, and all other tensors
    that the closure refers to, are cast in place, and put back. Where the program cannot run in
    double precision, it is done in its own, with a tolerance that fits. Afterwards parameters,
    gradients, buffers, modes and generators are as they were.

    Where torch.distributed runs, every rank has to call it.

    Args:
        closure: computes the loss, with whatever workers, ranks or collectives; without arguments.
            It may run the backward pass itself; else that is done with what it returns. It makes no
            optimizer step. In TensorFlow, it runs under a tape; where it has a tape of its own, it
            returns the loss and the gradients.
        parameters: an `nn.Module`, a Keras model, a tensor or variable, or a dict, list or iterator
            of these.
        rtol: the relative difference up to which two derivatives are equal.
        directions: how many random directions are tried.
        eps: how far to go, relative to the size of the parameters.
        reduce: how the losses of the ranks make the loss whose gradient they leave.

    Returns:
        How it was checked, where the gradient is right; None where gradguard is disabled.

    Raises:
        GradGuardError: the gradient is wrong (GG115): the parameters whose share it is, both
            derivatives of each, and the findings that explain it.
        ValueError: there is nothing to check, or the loss is not one number, not finite, or not
            the same each time.
        TypeError: an argument is of a wrong type.
    """
    __tracebackhide__ = True
    from pytest_gradguard.checking.check import check

    return check(closure, parameters, rtol=rtol, directions=directions, eps=eps, reduce=reduce)
