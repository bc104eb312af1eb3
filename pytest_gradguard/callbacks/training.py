"""The watch of one training run: what the callbacks of all libraries have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pytest_gradguard.gradients.watch import Watch, patterns, step_count, switch
from pytest_gradguard.messages import GradGuardError
from pytest_gradguard.runtime.kernel.announcing import warn

OnMissing = Literal["error", "warn"]


class TrainingWatch:
    """Watches a model from the start of its training until some optimizer steps were made.

    Args:
        steps, allow_none, finite, nonzero: as `pytest_gradguard.watch_gradients` takes them.
        on_missing: whether missing gradients are raised, or are warned of.

    Raises:
        TypeError, ValueError: one of them is none of the allowed values.
    """

    def __init__(
        self,
        steps: int,
        allow_none: str | Iterable[str],
        finite: bool,
        nonzero: bool,
        on_missing: OnMissing,
    ) -> None:
        if on_missing not in ("error", "warn"):
            raise ValueError(
                f"watch_gradients: on_missing={on_missing!r} is not allowed "
                "(allowed: 'error' or 'warn')"
            )
        self._raises = on_missing == "error"
        self._options: dict[str, Any] = {
            "steps": step_count(steps),
            "allow_none": patterns(allow_none),
            "finite": switch("finite", finite),
            "nonzero": switch("nonzero", nonzero),
        }
        self._watch: Watch | None = None

    def begin(self, model: Any) -> None:
        """Watch the parameters of `model`, whose training begins."""
        self.close()
        self._watch = Watch(model, raises=False, **self._options).start()

    def step_ended(self) -> None:
        """Report, if the last of the steps was made.

        Raises:
            GradGuardError: gradients are missing, and that is to be raised.
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        if self._watch is not None and self._watch.judged:
            self._report(raises=self._raises)

    def end(self) -> None:
        """Report at the end of the training, which had fewer steps.

        Raises:
            GradGuardError, ValueError: as for `step_ended`.
        """
        self._report(raises=self._raises)

    def failed(self) -> None:
        """Report beside an error that ends the training."""
        self._report(raises=False)

    def close(self) -> None:
        """End the watch without a verdict."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _report(self, *, raises: bool) -> None:
        watch, self._watch = self._watch, None
        if watch is None:
            return
        findings = watch.stop()
        if findings and raises:
            raise GradGuardError(findings)
        for finding in findings:
            warn(finding)


class TrainingCallback:
    """What the callbacks of all libraries are; its constructor says what they take."""

    def __init__(
        self,
        steps: int = 1,
        *,
        allow_none: str | Iterable[str] = (),
        finite: bool = True,
        nonzero: bool = False,
        on_missing: OnMissing = "error",
    ) -> None:
        super().__init__()
        self._watch = TrainingWatch(steps, allow_none, finite, nonzero, on_missing)
