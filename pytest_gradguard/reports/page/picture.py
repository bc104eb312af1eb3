"""What happened, in lanes: the program's own thread, and its workers; and the tree of a watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pytest_gradguard.findings import Finding, Lane, display_place

__all__ = ["Crossing", "Event", "Node", "Picture", "picture", "tree"]


class Event(NamedTuple):
    """What happens at one place, in one lane."""

    lane: Lane
    place: str
    code: str
    said: str
    is_finding: bool


class Crossing(NamedTuple):
    """Tensors that go from one lane to the other.

    Attributes:
        way: from which lane.
        tensors: what the findings tell of them.
        cut: their graph does not come along (``dropped``), or leads to copies (``copied``).
    """

    way: Literal["sent", "returned"]
    tensors: Sequence[Mapping[str, Any]]
    cut: Literal["dropped", "copied"] | None


class Picture(NamedTuple):
    """Events and crossings in the order in which they happen, and what is missing at the end.

    Attributes:
        workers: what the lane of the workers is called.
        rows: what happens.
        stops: a gradient was asked for in the program's thread, and stopped at the boundary.
        without: the names of the tensors that have no gradient.
        partial: those whose gradient lacks a part.
    """

    workers: str
    rows: Sequence[Event | Crossing]
    stops: bool
    without: Sequence[str]
    partial: Sequence[str]


def picture(finding: Finding, because: Iterable[Finding], source_line: Any) -> Picture | None:
    """The lanes of `finding`; None where nothing is known to have gone to workers.

    Args:
        finding: what was found.
        because: the findings that explain it: what was sent, and what came back.
        source_line: the line of a file, as it is now.
    """
    details = finding.details
    backend = details.get("backend")
    steps = [step for step in finding.trace if step.lane is not None]
    tensors = _tensors([finding, *because])
    if not backend or not (steps or tensors):
        return None
    where = finding.location
    own = Event(
        "parent",
        display_place(where.file, where.line),
        source_line(where.file, where.line).strip(),
        "",
        True,
    )
    rows: list[Event | Crossing] = [
        Event(
            step.lane or "parent",
            display_place(step.file, step.line),
            source_line(step.file, step.line).strip(),
            step.message,
            False,
        )
        for step in steps
    ]
    # Where a chain begins in the program's thread, it ends at the finding; else it begins there.
    begins_before = bool(steps) and steps[0].lane == "parent"
    rows.insert(len(rows) if begins_before else 0, own)
    sent = [one for one in tensors if one["direction"] != "result"]
    returned = [one for one in tensors if one["direction"] == "result"]
    if returned:
        last = max((n for n, row in enumerate(rows) if _is_in(row, "worker")), default=0)
        cut: Literal["dropped", "copied"] = "copied" if details.get("over_copies") else "dropped"
        rows.insert(last + 1, Crossing("returned", returned, cut if _made(returned) else None))
    if sent:
        last = min((n for n, row in enumerate(rows) if _is_in(row, "worker")), default=len(rows))
        rows.insert(last, Crossing("sent", sent, "dropped" if _made(sent) else None))
    return Picture(
        f"{backend} workers",
        rows,
        "results" in details or bool(details.get("confirmed")),
        details.get("without_gradient") or (),
        details.get("partial_gradient") or (),
    )


def _made(tensors: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any of them was computed, and so has a graph to lose."""
    return any(one["history"] for one in tensors)


def _is_in(row: Event | Crossing, lane: Lane) -> bool:
    return isinstance(row, Event) and row.lane == lane


def _tensors(findings: Iterable[Finding]) -> list[Mapping[str, Any]]:
    """What crossed, each once, in the findings' order."""
    known: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for finding in findings:
        for tensor in finding.details.get("tensors") or ():
            key = (tensor["direction"], tensor["object"], tensor["function"])
            known.setdefault(key, tensor)
    return list(known.values())


@dataclass
class Node:
    """A module of a watched tree, or a tensor: then it has a `state` and nothing below it.

    Attributes:
        name: the last part of its dotted name.
        state: ``arrived``, ``missing`` or ``allowed``.
        total: how many tensors are below it.
        arrived, missing: to how many of them a gradient came, and how many lack theirs.
        here: it is, or holds, one that the finding is about.
    """

    name: str
    state: str | None = None
    total: int = 0
    arrived: int = 0
    missing: int = 0
    here: bool = False
    inner: dict[str, Node] = field(default_factory=dict)


def tree(finding: Finding) -> Node | None:
    """What was watched, as the dotted names tell; None where the finding is not of a watch."""
    watched: Mapping[str, str] | None = finding.details.get("watched")
    if not watched:
        return None
    about = set(finding.details.get("objects", ()))
    root = Node("")
    for name, state in watched.items():
        node = root
        path = [root]
        for part in name.split("."):
            node = node.inner.setdefault(part, Node(part))
            path.append(node)
        node.state = state
        for one in path:
            one.total += 1
            one.arrived += state == "arrived"
            one.missing += state == "missing"
            one.here = one.here or name in about
    return root
