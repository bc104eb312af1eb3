"""What a misspelt word was perhaps meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_CLOSE = 0.75
"""From which likeness on, between 0 and 1, a word is suggested."""


def did_you_mean(written: str, allowed: Iterable[str]) -> str:
    """The end of a message: ``, did you mean 'select'?``, or "" where nothing is close.

    Args:
        written: what was written, in any case.
        allowed: what is known.
    """
    import difflib

    known = {word.lower(): word for word in allowed}
    for close in difflib.get_close_matches(written.lower(), known, n=1, cutoff=_CLOSE):
        return f", did you mean {known[close]!r}?"
    return ""
