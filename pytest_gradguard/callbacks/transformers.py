"""`WatchGradients` for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_gradguard.callbacks.training import TrainingCallback

__all__ = ["WatchGradients"]

if find_spec("transformers") is None:
    raise ImportError(
        "pytest_gradguard.callbacks.transformers needs transformers, which is not installed "
        "(pip install transformers)"
    )
_Callback: Any = import_module("transformers").TrainerCallback


class WatchGradients(TrainingCallback, _Callback):  # type: ignore[misc]
    """Watches the gradients of the first optimizer steps of `Trainer.train()`.

    Every parameter of the model must have received one by then. If one has not, `GradGuardError`
    ends the training, with GG104: the parameters' names, the reason and the line.

    Args:
        steps: how many optimizer steps.
        allow_none: glob patterns of the names that may have no gradient.
        finite: gradients must not contain NaN or infinity.
        nonzero: gradients must not be zero everywhere.
        on_missing: ``"error"``, or ``"warn"`` to go on with a warning.

    Raises:
        TypeError, ValueError: an option is none of the allowed values.
    """

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Begin to watch."""
        if model is not None:
            self._watch.begin(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report after the last of the steps."""
        self._watch.step_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report, if the training had fewer steps."""
        self._watch.end()
