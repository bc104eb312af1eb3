"""The findings of a program, as plain data, with repairs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.effects import Program, Step
from gradguard_lint.domain.values import Site
from gradguard_lint.project.files import absolute
from gradguard_lint.raw import WHERE, Place, Raw, is_error, merged, place_of
from gradguard_lint.reading.source import Module
from gradguard_lint.reading.suppress import skips_file, suppressed
from gradguard_lint.rules import rules
from gradguard_lint.rules.base import Gone, Report, listed

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.fixes.changes import Fix

Stated = list["tuple[Raw, Fix]"]
"""Findings, with the repairs that their rules propose."""


Silenced = set["tuple[str, int, str]"]
"""Comments that silence a finding: path, line and code."""


def judge(program: Program, codes: Iterable[str]) -> tuple[list[Raw], Stated, Silenced]:
    """The findings of `codes` in `program`, the proposed repairs, and silenced findings."""
    found: dict[Place, Raw] = {}
    skipped: dict[str, bool] = {}
    stated: Stated = []
    silenced: Silenced = set()

    def said(report: Report, code: str) -> Iterator[Report]:
        """The report, or its `otherwise` if a comment silences it."""
        module = report.site.module
        if module.path not in skipped:
            skipped[module.path] = skips_file(module.data)
        comments = [] if skipped[module.path] else _silencing(module, report.site, code)
        silenced.update((absolute(module.path), line, code) for line in comments)
        if comments or skipped[module.path]:
            yield from said_of(report.otherwise, code)
        else:
            yield report

    def said_of(reports: Iterable[Report], code: str) -> Iterator[Report]:
        for report in reports:
            yield from said(report, code)

    def raw_of(report: Report, code: str) -> Raw:
        otherwise = [raw_of(it, code) for it in said_of(report.otherwise, code)]
        return {**_raw(code, report, program), "otherwise": otherwise}

    for rule in rules(codes):
        for report in said_of(rule.check(program), rule.CODE):
            raw = raw_of(report, rule.CODE)
            unsure = report.call is not None and report.call.root in program.unsure
            if unsure and is_error(raw):
                continue
            key = place_of(raw)
            known = found.get(key)
            if known is not None:
                known.update(merged(known, raw))
                continue
            found[key] = raw
            if report.fix is not None:
                stated.append((raw, report.fix))
    return list(found.values()), stated, silenced


def _silencing(module: Module, site: Site, code: str) -> list[int]:
    """The lines of comments that silence `code` at `site`."""
    lines = {site.line}
    statement = site.statement
    if statement is not None:
        lines.add(getattr(statement, "lineno", site.line))
        if not hasattr(statement, "body"):  # a line in it may end in a string or backslash
            lines.add(getattr(statement, "end_lineno", None) or site.line)
    found = []
    for line in lines:
        if 0 < line <= len(module.byte_lines) and suppressed(module.byte_lines[line - 1], code):
            comments = module.comments  # computed only if needed: it may be in a string
            if comments is None or suppressed(comments.get(line, b""), code):
                found.append(line)
    return found


def _span(site: Site) -> tuple[int, int, int, int]:
    node: Any = site.node
    module = site.module
    line = getattr(node, "lineno", 1)
    start = getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end = getattr(node, "end_col_offset", None)
    if end is None:
        end = start
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While)):
        end_line = line
        end = len(module.byte_lines[line - 1].split(b"#")[0].rstrip())
    return line, module.column(line, start), end_line, module.column(end_line, end)


def _raw(code: str, report: Report, program: Program) -> Raw:
    line, column, end_line, end_column = _span(report.site)
    trace, ways = _steps(report, program)
    return {
        "code": code,
        "path": absolute(report.site.path),
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "function": report.site.function,
        "message": report.message,
        "severity": report.severity,
        "trace": trace,
        "ways": ways,
        "case": report.case or (report.call.library if report.call is not None else ""),
        "advice": report.advice,
        "details": _details(report),
        "edits": None,
        "gone": None if report.gone is None else _plain(report.gone),
    }


def _plain(gone: Gone) -> dict[str, Any]:
    return {"packages": [*gone.packages], "version": gone.version, "said": gone.said}


def _steps(
    report: Report, program: Program
) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """The steps of the trace, and those of them that lead to the dispatch."""
    call = report.call
    sites: list[Site] = []
    if call is not None:  # a process gets its task on creation, and is started elsewhere
        sites += [call.site, *(run.task.site for run in call.tasks)]
        sites += [run.initializer.site for run in call.tasks if run.initializer is not None]
    handed_out = {(site.path, site.line) for site in sites}
    trace: list[tuple[str, int, str]] = []
    ways: list[tuple[str, int, str]] = []
    given = [(step.site.path, step.site.line) in handed_out for step in report.trace]
    first = given.index(True) if True in given else 0
    elsewhere = list(_calls_from_other_modules(report))
    given[first:first] = [True] * len(elsewhere)
    steps = [*report.trace[:first], *elsewhere, *report.trace[first:]]
    # Conditions beyond those of the call belong to the task's step.
    own = (step for step in report.trace if step.site == report.site not in sites)
    own_step = next(own, report.trace[-1] if report.trace else None)
    when = call.when if call is not None else None
    if call is not None and _cut(program, (call.site, *(link.site for link in call.chain))):
        when = None
    for step, leads in zip(steps, given, strict=True):
        message = step.message
        if when is not None and (step.site.path, step.site.line) in handed_out:
            message += _needed_options(program, when)
        if step is own_step and not _cut(program, (it.site for it in report.trace)):
            asked = report.when - (call.when if call is not None else NONE)
            message += _needed_options(program, asked)
        item = (absolute(step.site.path), step.site.line, message)
        if item not in trace:
            trace.append(item)
            if leads:
                ways.append(item)
    return trace, ways


def _cut(program: Program, sites: Iterable[Site]) -> bool:
    """Whether one of `sites` is in a function with calls that weren't followed."""
    return any(
        site.path == path and first <= site.line <= last
        for site in sites
        for path, first, last in program.cut
    )


def _needed_options(program: Program, when: Conditions) -> str:
    """The program options that `when` needs against their defaults: flags that are off, and values
    that differ. Other options may be overridden without effect."""
    asked = [key for key, truth in when if truth and isinstance(key, tuple)]
    off = [key for key in asked if program.defaults.get(key) == (False,)]
    named = sorted({f"`{key[-1]}`" for key in off if key[0] in ("option", "item", "attr")})
    be = "are" if named[1:] else "is"
    said = [f"{listed(named)} {be} set, which {be} off by default"] if named else []
    said += sorted(filter(None, (_nondefault_value(program, key) for key in asked)))
    return f"{WHERE}{', and '.join(said)}" if said else ""


_ASKING = {"eq": "is", "in": "has", "contains": "has"}
"""Questions about the value of an option, as words for messages."""


def _nondefault_value(program: Program, key: tuple[Any, ...]) -> str:
    """The value that an option needs, if it isn't the default."""
    if len(key) != 3 or key[0] not in _ASKING or not isinstance(key[1], tuple) or not key[1]:
        return ""
    known = program.defaults.get(key[1], ())
    if key[1][0] != "option" or not known or not all(isinstance(it, str) for it in known):
        return ""
    if any(key[2] == it if key[0] == "eq" else key[2] in it for it in map(str, known)):
        return ""
    return f"`{key[1][-1]}` {_ASKING[key[0]]} {key[2]!r}, which is {known[0]!r} by default"


def _calls_from_other_modules(report: Report) -> Iterator[Step]:
    """The call from another module that leads to a helper which dispatches tasks."""
    if report.call is None:
        return
    home = report.call.site.module
    for step in reversed(report.call.chain):
        if step.site.module is not home:
            if not any(step.site == other.site for other in report.trace):
                yield step
            return


def _details(report: Report) -> dict[str, Any]:
    """Further facts of a finding for tools, as plain data."""
    details: dict[str, Any] = {}
    if report.what:
        details["what"] = report.what
    if report.call is not None:
        details["handed_out_at"] = _place(report.call.site)
        details["library"] = report.call.library
        details["start_method"] = report.call.start
        details["workers"] = report.call.workers
    if report.others:
        details["also_from"] = [_place(site) for site in report.others]
    return details


def _place(site: Site) -> dict[str, Any]:
    return {"path": absolute(site.path), "line": site.line}
