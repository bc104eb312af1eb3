"""The table of programs with tapes, and what they share."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from pytest_gradguard import GradGuardError, GradGuardWarning

PROGRAMS: dict[str, tuple[list[Any], Callable[[], None]]] = {}
FIXES: dict[str, list[str | None]] = {}
"""What the findings of each program advise."""
WARNED: dict[str, list[str]] = {}
"""What the guard warned of in each program."""
MARK = "# <- here"


def expects(reason: str, *names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(run: Callable[[], None]) -> Callable[[], None]:
        lines, first = inspect.getsourcelines(run)
        marked = [n for n, text in enumerate(lines, first) if text.rstrip().endswith(MARK)]
        PROGRAMS[run.__name__] = ([reason, sorted(names), marked[:1]], run)
        return run

    return add


def network() -> Any:
    first = keras.layers.Dense(2, name="first")
    return keras.Sequential([first, keras.layers.Dense(1, name="second")])


def batch() -> Any:
    return tf.constant([[0.5, 1.0], [1.5, 2.0]])


def pair() -> tuple[Any, Any]:
    return tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])


def outcome(run: Callable[[], None]) -> list[Any]:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        told = [str(one.message) for one in caught if issubclass(one.category, GradGuardWarning)]
        WARNED[run.__name__] = told
    except GradGuardError as error:
        findings = error.findings
        FIXES[run.__name__] = [finding.fix for finding in findings]
        reasons = {finding.details["reason"] for finding in findings}
        names = sorted(name for finding in findings for name in finding.details["objects"])
        return ["/".join(sorted(reasons)), names, [findings[0].location.line]]
    return ["", [], []]
