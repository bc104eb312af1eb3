"""What ``gradguard lint`` writes: findings for people or for tools, and the line at the end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from pytest_gradguard.cli.streams import write, write_error
from pytest_gradguard.cli.words import counted
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TextIO

    from gradguard_lint.outcome import Outcome
    from gradguard_lint.project.files import Trouble
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.reports.target import Target

__all__ = ["Result", "no_safe_repairs", "report"]


@fields
class Result:
    """What there is to write.

    Attributes:
        shown: the findings.
        hidden: those that only their severity hides.
        errors: what could not be used.
        outcome: the run.
        stdin: the name and the source of what was read from standard input.
        fixed: how many findings were repaired before.
        fix: whether it was tried.
    """

    shown: Sequence[Finding]
    hidden: Sequence[Finding]
    errors: Sequence[Trouble]
    outcome: Outcome
    stdin: tuple[str, bytes] | None
    fixed: int = 0
    fix: bool = False


def report(args: argparse.Namespace, result: Result, target: Target | None) -> None:
    """Write `result` in the format that `args` asks for, to `target` or standard output.

    Where standard output has the repaired source, it goes to standard error.
    """
    to_error = target is None and result.stdin is not None and args.fix and not args.diff
    stream = None if target is not None else sys.stderr if to_error else sys.stdout
    if args.output_format == "text":
        text = _text(
            result, stream, args.color, statistics=args.statistics, unsafe=args.unsafe_fixes
        )
    elif args.output_format == "concise":
        text = _concise(result, statistics=args.statistics, unsafe=args.unsafe_fixes)
    else:
        text = _for_tools(args.output_format, result)
    if target is not None:
        target.write(text)
    elif to_error:
        write_error(text)
    else:
        write(text)


# -- for tools -------------------------------------------------------------------------------------


def _for_tools(name: str, result: Result) -> str:
    from pytest_gradguard.findings import Cut, ReadError
    from pytest_gradguard.reports.overview import linked

    findings = linked(result.shown)
    errors = [
        ReadError(error.path, max(error.line, 1), error.message, error.cell or None)
        for error in result.errors
    ]
    cut = [Cut(**one) for one in result.outcome.cut]
    if name == "json":
        import json

        from pytest_gradguard.findings import report as as_dict

        # In ASCII: whatever a file is called, neither an encoding nor a terminal has to bear it.
        return json.dumps(as_dict(findings, errors, cut), indent=2) + "\n"
    if name == "github":
        from pytest_gradguard.reports import github

        said = [_cut_line(result)] if cut else []
        return "".join(line + "\n" for line in github.lines(findings, errors, notices=said))
    if name == "junit":
        from pytest_gradguard.reports import junit

        return junit.render(findings, errors)
    if name == "gitlab":
        from pytest_gradguard.reports import gitlab

        return gitlab.render(findings, _Sources(result))
    from pytest_gradguard.reports import sarif

    return sarif.render(findings, _Sources(result), errors, cut)


# -- for people ------------------------------------------------------------------------------------


def _text(
    result: Result, stream: TextIO | None, colour: str, *, statistics: bool, unsafe: bool
) -> str:
    parts: list[str] = []
    if result.shown:
        from pytest_gradguard.reports.text import blocks, style_for, width_of

        lines = blocks(
            result.shown,
            style=style_for(stream, colour),
            source_line=_Sources(result),
            width=width_of(stream),
            unsafe=unsafe,
        )
        parts.append("\n".join(lines))
    if statistics and (counts := "\n".join(_statistics(result))):
        parts.append(counts)
    if result.outcome.files or not result.errors:
        parts.append("\n".join(_last_lines(result, unsafe=unsafe)))
    return "\n\n".join(parts) + "\n" if parts else ""


def _concise(result: Result, *, statistics: bool, unsafe: bool) -> str:
    from pytest_gradguard.reports import concise

    parts = list(concise.lines(result.shown))
    if statistics:
        parts += _statistics(result)
    if result.outcome.files or not result.errors:
        parts += _last_lines(result, unsafe=unsafe)
    return "".join(part + "\n" for part in parts)


class _Sources:
    """Lines of source, counted as Python counts them; in notebooks, by cell."""

    def __init__(self, result: Result) -> None:
        self._known: dict[str, list[str]] = {}
        if result.stdin is not None:
            name, data = result.stdin
            self._known[name] = self._known[os.path.abspath(name)] = _lines(data)
        for path, notebook in result.outcome.notebooks.items():
            for cell in notebook.cells:
                lines = _lines(cell.text.encode("utf-8", "replace"))
                self._known[f"{os.path.abspath(path)}:cell {cell.number}"] = lines

    def __call__(self, path: str, line: int) -> str:
        if path not in self._known:
            from gradguard_lint.project.contents import Unusable, read

            try:
                self._known[path] = _lines(read(path))
            except Unusable:  # it was there when it was checked
                self._known[path] = []
        lines = self._known[path]
        return lines[line - 1] if 0 < line <= len(lines) else ""


def _lines(data: bytes) -> list[str]:
    from gradguard_lint.reading.text import byte_lines

    return [line.decode("utf-8", "replace") for line in byte_lines(data)]


def _statistics(result: Result) -> Iterator[str]:
    """How often each code was found, and how many functions were cut off for each reason."""
    from collections import Counter

    counts = Counter((finding.code, finding.name) for finding in result.shown)
    counts.update(("cut  ", one["reason"]) for one in result.outcome.cut)
    width = max((len(str(count)) for count in counts.values()), default=0)
    for (code, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>{width}}  {code}  {name}"


def _cut_line(result: Result) -> str:
    """How many functions a budget cut off."""
    count = len(result.outcome.cut)
    end = "its end" if count == 1 else "their end"
    return (
        f"{counted(count, 'function')} not followed to {end}: reached a limit of the analysis "
        "(listed by --output-format json)"
    )


def _last_lines(result: Result, *, unsafe: bool) -> Iterator[str]:
    """What was checked and found, how much of it can be repaired, and what was cut off."""
    yield _summary(result)
    yield from _fixable(result, unsafe=unsafe)
    if result.outcome.cut:
        yield _cut_line(result)


def _fixable(result: Result, *, unsafe: bool) -> Iterator[str]:
    """How many findings can be repaired, if any can."""
    repairs = [finding.edits for finding in result.shown if finding.edits is not None]
    if not repairs:
        return
    safe = sum(repair.is_safe for repair in repairs)
    risky = len(repairs) - safe
    if result.fix:  # what this run would have repaired, and did not, no other run will
        safe = 0
        risky = 0 if unsafe else risky
    option = "`--fix --unsafe-fixes`" if risky else "`--fix`"
    if safe and risky and not unsafe:
        yield f"[*] {safe} fixable with `--fix` ({risky} more with `--unsafe-fixes`)."
    elif safe or (risky and unsafe):
        yield f"[*] {safe + risky} fixable with {option}."
    elif risky:
        yield no_safe_repairs(risky)


def no_safe_repairs(unsafe: int) -> str:
    """What is said where repairs that are not safe are all that there are."""
    return f"No safe repairs ({unsafe} fixable with `--fix --unsafe-fixes`)."


def _summary(result: Result) -> str:
    """What was checked, what was found, what is hidden, and where to read on."""
    if not (result.outcome.files or result.outcome.left_out or result.errors):
        return "no Python files or notebooks were found"
    line = f"{counted(result.outcome.files, 'file')} checked"
    if result.outcome.left_out:
        line += f", {result.outcome.left_out} excluded"
    line += ": "
    if result.fixed:
        line += f"{counted(result.fixed, 'finding')} fixed, "
    line += _by_severity(result.shown) or ("none left" if result.fixed else "no findings")
    if result.hidden:
        lowest = min(finding.severity for finding in result.hidden).label
        them = "it" if len(result.hidden) == 1 else "them"
        line += f"; hidden: {_by_severity(result.hidden)} (--min-severity {lowest} shows {them})"
    if result.outcome.not_for_info:
        files = counted(result.outcome.not_for_info, "file")
        line += f"; info checks skipped in {files} (--min-severity info enables them)"
    if result.errors:
        line += f"; {counted(len(result.errors), 'error')} (see stderr)"
    if result.shown:
        from pytest_gradguard.reports.overview import where_to_read

        line += f"; {where_to_read(result.shown)}"
    return line


def _by_severity(findings: Sequence[Finding]) -> str:
    """Counts such as ``1 error, 2 warnings``."""
    if not findings:
        return ""
    from pytest_gradguard.reports.overview import count_line

    return count_line(findings)
