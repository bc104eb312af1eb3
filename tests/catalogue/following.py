"""What it takes to follow an advice of the catalogue to the letter."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pytest_gradguard.pitfalls import get

Change = tuple[str, str]
THREADS = ("Parallel(n_jobs=2)", 'Parallel(n_jobs=2, backend="threading")')


class Followed(NamedTuple):
    """One advice, followed: each way is a phrase of it, and the replacements that it asks for.

    Attributes:
        code: the pitfall.
        case: the case of its advice; empty: its own.
        right: what the program prints once the advice is followed.
        ways: by a phrase of the advice: what it asks for.
        bad: the program; by default that of the entry.
        needs: what has to be installed, further to torch and joblib.
        found_by: which side finds it; or it is a note beside the program's error.
    """

    code: str
    case: str
    right: str
    ways: dict[str, tuple[Change, ...]]
    bad: str = ""
    needs: tuple[str, ...] = ()
    found_by: Literal["guard", "lint", "note"] = "guard"

    @property
    def name(self) -> str:
        """Its name in the tests."""
        return " ".join(filter(None, (self.code, self.case)))

    @property
    def program(self) -> str:
        """The program with the pitfall."""
        return self.bad or get(self.code).bad
