"""The answer of `why_no_grad`."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.findings import display_place
from pytest_gradguard.gradients import reasons
from pytest_gradguard.gradients.targets import items_of
from pytest_gradguard.reports.printable import shown


class Answer(str):
    """A string whose `repr` is its text, with an HTML form for notebooks.

    Attributes:
        parts: kind, reason, steps of the trace, and fix.
    """

    parts: tuple[str, str, tuple[tuple[str, str], ...], str] | None = None

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from pytest_gradguard.reports.page import answer  # only for notebooks

        return answer(*(self.parts or ("", self, (), "")))


UNKNOWN = Answer("There is no answer: gradguard itself failed.")


def answer(tensor: Any) -> Answer:
    """Why `tensor` has no gradient.

    Raises:
        TypeError: it is neither a tensor nor a variable.
    """
    __tracebackhide__ = True
    try:
        item = items_of(tensor)[0]
    except (TypeError, ValueError):
        item = None
    if item is None or item.value is not tensor or item.kind not in ("tensor", "variable"):
        raise TypeError(
            f"why_no_grad takes a tensor or a variable, not {type(tensor).__name__!r} "
            "(for a whole module: watch_gradients)"
        )
    if item.kind == "variable":
        from pytest_gradguard.gradients import tensorflow_watch

        reason = tensorflow_watch.explain(tensor)
    else:
        from pytest_gradguard.gradients import torch_diagnosis

        reason = torch_diagnosis.explain(tensor)
    if reason is None:
        return Answer("It has a gradient.")
    return said(reason)


def said(reason: reasons.Reason) -> Answer:
    """A reason as text, with its trace and fix."""

    def singular(text: str) -> str:
        return reasons.in_number(text, many=False)

    text, fix = singular(f"{reason.text()}."), singular(reason.fix())
    steps = tuple(
        (display_place(step.path, step.line), singular(step.message)) for step in reason.trace()
    )
    lines = [f"{reason.kind}: {text}", *(f"  {place}: {message}" for place, message in steps)]
    made = Answer("\n".join(map(shown, [*lines, f"fix: {fix}"])))
    made.parts = (reason.kind, text, steps, fix)
    return made
