"""The text of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_gradguard.comparing.difference import Difference
from pytest_gradguard.comparing.running import Compared
from pytest_gradguard.reports.overview import folded
from pytest_gradguard.reports.text import blocks

UNKNOWN = "cause unknown: no finding of the guard explains the difference"


def lines_of(compared: Compared) -> Iterator[str]:
    """The lines of text on a comparison."""
    for line in summary(compared):
        yield f"gradguard compare: {line}"
    if compared.output:
        yield from (f"    {line}" for line in compared.output.splitlines())
    if compared.explaining:
        yield ""
        yield from blocks(compared.explaining)


def summary(compared: Compared) -> Iterator[str]:
    """The lines without the findings."""
    tasks = f"{compared.handed} task{'s' * (compared.handed != 1)}"
    if compared.difference is not None:
        yield from _difference(compared.difference)
        if compared.explaining:
            heads = [finding for finding, _ in folded(compared.explaining)]
            codes = ", ".join(dict.fromkeys(one.code for one in heads))
            yield f"explained by {codes}"
        else:
            yield UNKNOWN
    elif compared.status == 2:
        yield f"not compared: {compared.reason}"
    elif compared.reason:
        yield compared.reason
    else:
        yield f"the same with workers and in one process ({tasks} compared)"
    yield from compared.remarks


def _difference(found: Difference) -> Iterator[str]:
    if found.tensor:
        yield f"the runs differ {found.moment}: `{found.tensor}`"
    else:
        yield f"the runs do different things {found.moment}"
    yield f"  with workers:   {found.values[0]}"
    yield f"  in one process: {found.values[1]}"
    if found.more:
        more = "1 more tensor differs" if found.more == 1 else f"{found.more} more tensors differ"
        yield f"  {more} there"


def to_dict(compared: Compared) -> dict[str, Any]:
    """As JSON, for the entry `compare` of a report."""
    outcome = ("same", "differ", "not compared")[compared.status]
    found = compared.difference
    return {
        "outcome": outcome,
        "reason": compared.reason or None,
        "tasks": compared.handed,
        "difference": None if found is None else found.to_dict(),
        "explained_by": [one.reference.to_dict() for one in compared.explaining],
        "remarks": list(compared.remarks),
    }
