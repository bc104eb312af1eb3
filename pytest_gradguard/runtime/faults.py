"""A fault of the guard's own never breaks the user's program: it becomes one warning."""

from __future__ import annotations

import warnings

from pytest_gradguard.messages import GradGuardError, GradGuardWarning

_reported = False


def fault(error: BaseException) -> None:
    """Say once in this process that the guard itself failed; the call goes on unguarded.

    Raises:
        GradGuardError: `error` is one, that is, the user asked for findings to be raised.
        GradGuardWarning: the user's warning filters turn the warning into an error.
    """
    global _reported
    if isinstance(error, (GradGuardError, GradGuardWarning)):
        raise error
    if _reported:
        return
    _reported = True
    warnings.warn(
        f"gradguard itself failed and looks away from here on where it did: "
        f"{type(error).__name__}: {error}",
        GradGuardWarning,
        stacklevel=2,
    )
