"""Findings as plain data, for the cache and for other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Raw = dict[str, Any]
"""A finding."""

Place = tuple[str, str, int, int]
"""The file, code, line and column of a finding."""

WHERE = ", where "
"""The text before the conditions of a step."""


def place_of(raw: Raw) -> Place:
    """The key that equal findings share."""
    return raw["path"], raw["code"], raw["line"], raw["column"]


def everywhere(raws: Iterable[Raw]) -> Iterator[Raw]:
    """Findings, and their alternatives for silenced places."""
    for raw in raws:
        yield raw
        yield from everywhere(raw["otherwise"])


def wanted(raws: Iterable[Raw], want: Callable[[Raw], bool]) -> Iterator[Raw]:
    """The findings that satisfy `want`, with alternatives for the others."""
    for raw in raws:
        if want(raw):
            yield raw
        else:
            yield from wanted(raw["otherwise"], want)


def merged(first: Raw, second: Raw) -> Raw:
    """One of two equal findings: the more severe, or the first; with the other's calls."""
    kept, other = sorted((first, second), key=_severity, reverse=True)
    if kept["edits"] != other["edits"]:  # a repair for one program doesn't fit the other
        kept = {**kept, "edits": None}
    trace, ways = (_joined(kept[name], other["ways"]) for name in ("trace", "ways"))
    details = kept["details"]
    places = {(place["path"], place["line"]) for place in other["details"].get("also_from", ())}
    places |= {other["ways"][0][:2]} if other["ways"] else set()
    places |= {(place["path"], place["line"]) for place in details.get("also_from", ())}
    places -= {kept["ways"][0][:2]} if kept["ways"] else set()
    if places:
        also = [{"path": path, "line": line} for path, line in sorted(places)]
        details = {**details, "also_from": also}
    otherwise = [*{place_of(it): it for it in (*other["otherwise"], *kept["otherwise"])}.values()]
    return {**kept, "trace": trace, "ways": ways, "details": details, "otherwise": otherwise}


def _joined(steps: list[Any], ways: list[Any]) -> list[Any]:
    """All steps, each once; without conditions that only one of two programs needs."""
    known = {*steps, *ways}
    plain = [(path, line, text.partition(WHERE)[0]) for path, line, text in (*steps, *ways)]
    both = zip((*steps, *ways), plain, strict=True)
    return [*dict.fromkeys(bare if bare in known else step for step, bare in both)]


def is_error(raw: Raw) -> bool:
    """Whether a finding is of the highest severity."""
    from pytest_gradguard.severity import Severity

    return _severity(raw) == Severity.ERROR


def _severity(raw: Raw) -> int:
    from pytest_gradguard.pitfalls import get
    from pytest_gradguard.severity import Severity

    severity = raw["severity"]
    return int(Severity.parse(severity) if severity else get(raw["code"]).severity)
