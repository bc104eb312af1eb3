"""The findings of a run as one page of HTML, which needs nothing else; and parts of it."""

from __future__ import annotations

import base64
import functools
import hashlib
import linecache
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from pytest_gradguard import __version__, pitfalls
from pytest_gradguard.findings import Finding, Severity, display_path, display_place, merge
from pytest_gradguard.reports.overview import Group, count_groups, distinct, group_by_place
from pytest_gradguard.reports.page.excerpts import excerpts
from pytest_gradguard.reports.page.picture import Event, picture, tree
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.reports.repairs import hunks
from pytest_gradguard.tallies import Tally

__all__ = ["answer", "fragment", "page"]

SourceLine = Callable[[str, int], str]

_IDENTITY = attrgetter("identity")


class _Fact(NamedTuple):
    """What the filters know of one group."""

    group: Group
    severities: Sequence[str]
    codes: Sequence[str]
    files: Sequence[str]
    tests: Sequence[str]


def page(
    findings: Iterable[Finding],
    calls: Iterable[Tally] = (),
    *,
    base: str | None = None,
    guarded: str | None = None,
    compared: Sequence[str] = (),
    about: Sequence[str] = (),
) -> str:
    """The page of a whole run.

    Args:
        findings: what was found.
        calls: the parallel calls.
        base: the folder that their paths are relative to; by default the current one.
        guarded: what the run was guarded in, where that is not all of it.
        compared: what came of a comparison of two runs, in lines.
        about: the run: its command, its date, versions.
    """
    findings = list(findings)
    groups = group_by_place(findings)
    every = distinct(groups)
    style, script = (_file(name) for name in ("page.css", "page.js"))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            facts=[_fact(group) for group in groups],
            calls=list(calls),
            guarded=guarded,
            compared=compared,
            about=about,
            version=__version__,
            count=_count(groups),
            beside=len(every) > len(groups),
            severities=[
                (severity.label, sum(finding.severity is severity for finding in every))
                for severity in reversed(Severity)
            ],
            codes=_counted([finding.code] for finding in every),
            files=_counted(map(_files, every)),
            tests=_counted([shown(one.test)] for one in merge(findings, _IDENTITY) if one.test),
            style=Markup(_file("parts.css") + style),
            script=Markup(script),
            style_hash=_digest(_file("parts.css") + style),
            script_hash=_digest(script),
            source_line=_reader(base),
        )
    )


def fragment(findings: Iterable[Finding], *, count: bool = True) -> str:
    """`findings` as a piece of a notebook's page; `count`: with a line that counts them."""
    groups = group_by_place(findings)
    return (
        _environment()
        .get_template("fragment.html.j2")
        .render(
            groups=groups,
            count=_count(groups) if count else None,
            style=_card_style(),
            source_line=linecache.getline,
        )
    )


def answer(kind: str, text: str, steps: Iterable[tuple[str, str]], fix: str) -> str:
    """What `why_no_grad` says, as a piece of a notebook's page.

    Args:
        kind: the kind of the reason.
        text: the reason.
        steps: places, and what happened there.
        fix: what to do.
    """
    return (
        _environment()
        .get_template("answer.html.j2")
        .render(kind=kind, text=text, steps=list(steps), fix=fix, style=_card_style())
    )


def _count(groups: Sequence[Group]) -> str:
    """The line that counts `groups`, as the terminal has it."""
    gravest = max((group.finding.severity for group in groups), default=Severity.WARNING)
    return count_groups(groups, min(gravest, Severity.WARNING))


def _fact(group: Group) -> _Fact:
    every = group.findings
    return _Fact(
        group,
        list(dict.fromkeys(one.severity.label for one in every)),
        list(dict.fromkeys(one.code for one in every)),
        list(dict.fromkeys(file for one in every for file in _files(one))),
        list(map(shown, group.tests)),
    )


def _files(finding: Finding) -> Sequence[str]:
    """The files that `finding` is about."""
    places = [finding.location.path, *(step.path for step in finding.trace)]
    return list(dict.fromkeys(shown(display_path(place)) for place in places))


def _counted(values: Iterable[Iterable[str]]) -> list[tuple[str, int]]:
    return sorted(Counter(value for some in values for value in some).items())


def _reader(base: str | None) -> SourceLine:
    linecache.checkcache()  # the lines as they are now, not as they were when a test read them

    def source_line(path: str, line: int) -> str:
        return linecache.getline(path if base is None else os.path.join(base, path), line)

    return source_line


@functools.cache
def _file(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]


@functools.cache
def _card_style() -> Markup:
    """The style of a card in a notebook; `:not(#_#_)` lets it outweigh the host's own."""
    style = _file("card.css") + _file("parts.css")
    return Markup(style.replace(".gradguard", ".gradguard:not(#_#_)"))


def _digest(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_gradguard.reports.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
    )
    environment.filters["prose"] = _prose
    environment.globals.update(
        pitfall=pitfalls.get,
        excerpts=excerpts,
        picture=picture,
        tree=tree,
        hunks=hunks,
        display_place=display_place,
        headline=headline,
    )
    environment.tests["event"] = lambda row: isinstance(row, Event)
    return environment


def headline(finding: Finding) -> str:
    """A headline: the tensors that lack a gradient, or the pitfall's title."""
    title = pitfalls.get(finding.code).title
    without = finding.details.get("without_gradient")
    names = without or finding.details.get("partial_gradient")
    if not names:
        return title
    who = names[0] if "`" in names[0] else f"`{names[0]}`"
    get, whose = "gets", "its gradient"
    if names[1:]:
        who, get, whose = f"{who} and {len(names) - 1} more", "get", "their gradients"
    lacks = "no gradient" if without else f"only part of {whose}"
    return f"{who} {get} {lacks}: {title[0].lower()}{title[1:]}"


def _visible(value: Any) -> Any:
    """What a browser would obey, or not show at all, is shown."""
    return shown(value) if type(value) is str else value


def _prose(text: str) -> Markup:
    """`text` with what stands between backticks as code."""
    parts = shown(text).split("`")
    if not len(parts) % 2:
        return Markup.escape("`".join(parts))
    marked = (Markup("<code>{}</code>") if n % 2 else Markup("{}") for n in range(len(parts)))
    return Markup("").join(mark.format(part) for mark, part in zip(marked, parts, strict=True))
