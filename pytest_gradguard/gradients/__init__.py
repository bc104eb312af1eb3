"""Reports which watched tensors received no gradient, and why.

`watch_gradients` watches a block; `why_no_grad` answers for one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gradguard.gradients.watch import Watch

__all__ = ["watch_gradients", "why_no_grad"]


def watch_gradients(
    watched: Any,
    *,
    allow_none: str | Iterable[str] = (),
    finite: bool = True,
    nonzero: bool = False,
    steps: int | None = None,
) -> Watch:
    """Watch tensors for the length of a `with` block: each must receive a gradient in it.

    Every gradient from a backward pass inside the block counts, even if it has been cleared since.

    With `steps` no block is needed: the watch starts at once, and ends after that many steps of
    torch optimizers that update one of the tensors.

    Args:
        watched: an `nn.Module`, a Keras model or layer, a tensor or variable, or a dict or list
            of these.
        allow_none: glob patterns of the dotted names that may have no gradient.
        finite: gradients must not contain NaN or infinity.
        nonzero: gradients must not be zero everywhere.
        steps: for a training loop: check in the last of this many optimizer steps.

    Returns:
        A context manager; it yields itself.

    Raises:
        TypeError: `watched` contains something that cannot be watched, or an option has a value
            that is not allowed.
        ValueError: there is nothing to watch, or nothing that torch's optimizers update; or, at
            the end, a pattern of `allow_none` matches no watched name.
        GradGuardError: at the end: watched tensors have no gradient. The findings (GG104) give
            their names and the reason for each, with the line to look at where it is known.
    """
    __tracebackhide__ = True
    from pytest_gradguard.gradients.watch import REFUSED, Watch
    from pytest_gradguard.runtime.kernel.faults import attempt, checked, theirs_only

    options = {"allow_none": allow_none, "finite": finite, "nonzero": nonzero, "steps": steps}
    with theirs_only:
        watch: Watch = checked(REFUSED, Watch, watched, **options) or Watch.idle()
    if steps is not None:
        attempt(watch.start)
    return watch


def why_no_grad(tensor: Any) -> str:
    """Explain in a few lines why `tensor` has no gradient.

    Inside a `watch_gradients` block the answer uses what has happened since the block began;
    elsewhere what the tensor itself shows. Under the guard, it also uses the guard's findings.

    Raises:
        TypeError: `tensor` is neither a tensor nor a variable.
    """
    __tracebackhide__ = True
    from pytest_gradguard.gradients.answer import UNKNOWN, answer
    from pytest_gradguard.runtime.kernel.faults import checked, theirs_only

    with theirs_only:
        text: str = checked((TypeError,), answer, tensor, instead=UNKNOWN)
    return text
