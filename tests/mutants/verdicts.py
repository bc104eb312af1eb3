"""What came of the mutations, and how that is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mutations import Mutation

SHOWN = 3
"""How many of the tests that reach a survivor are named."""


class Verdict(NamedTuple):
    """What came of one mutation.

    Attributes:
        how: "killed", "survived", "not reached" by any test, or "not applied": no function that
            is loaded holds it.
        by: the test that failed; "" where its process ended, by a limit or by itself.
        tests: those that reach it.
    """

    how: str
    by: str = ""
    tests: tuple[str, ...] = ()


def show(verdicts: Mapping[Mutation, Verdict], root: Path) -> None:
    """Print the score, and what survived or was not reached."""
    for how in ("not reached", "survived"):
        for mutation, verdict in verdicts.items():
            if verdict.how == how:
                where = Path(mutation.path).relative_to(root)
                print(f"{where}:{mutation.line}: {how}: {mutation.shown}")
                for test in verdict.tests[:SHOWN]:
                    print(f"    {test}")
                if len(verdict.tests) > SHOWN:
                    print(f"    and {len(verdict.tests) - SHOWN} other tests")
    count = Counter(verdict.how for verdict in verdicts.values())
    judged = count["killed"] + count["survived"] + count["not reached"]
    print(
        f"{count['killed']} of {judged} mutations killed; {count['survived']} survived, "
        f"{count['not reached']} not reached, {count['not applied']} could not be applied"
    )
