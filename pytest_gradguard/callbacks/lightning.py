"""`WatchGradients` for Lightning's Trainer, of `lightning` or `pytorch_lightning`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_gradguard.callbacks.training import TrainingCallback

__all__ = ["WatchGradients"]

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _bases() -> tuple[Any, ...]:
    """The `Callback` of each package that the program uses; of one that is installed otherwise.

    Raises:
        ImportError: neither is installed.
    """
    used = [name for name in _PACKAGES.values() if name in sys.modules]
    if not used:
        used = [name for package, name in _PACKAGES.items() if find_spec(package)][:1]
    if not used:
        raise ImportError(
            "pytest_gradguard.callbacks.lightning needs Lightning, which is not installed "
            "(pip install lightning)"
        )
    return tuple(import_module(name).Callback for name in used)


_Callback: Any = type("_Callback", _bases(), {})


class WatchGradients(TrainingCallback, _Callback):  # type: ignore[misc]
    """Watches the gradients of the first optimizer steps of a fit.

    Every parameter of the module must have received one by then. If one has not, `GradGuardError`
    ends the fit, with GG104: the parameters' names, the reason and the line. If an error ends
    the fit earlier, a warning names what is missing.

    Args:
        steps: how many optimizer steps.
        allow_none: glob patterns of the names that may have no gradient.
        finite: gradients must not contain NaN or infinity.
        nonzero: gradients must not be zero everywhere.
        on_missing: ``"error"``, or ``"warn"`` to go on with a warning.

    Raises:
        TypeError, ValueError: an option is none of the allowed values.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._watch.begin(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Report after the last of the steps."""
        self._watch.step_ended()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, if the fit had fewer steps."""
        self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report beside the error."""
        self._watch.failed()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the watch."""
        self._watch.close()
