"""JUnit XML, which most servers for continuous integration show: a failed test case a finding."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pytest_gradguard.findings import Finding, ReadError, display_path, display_place
from pytest_gradguard.reports.overview import Folded, explanations, folded
from pytest_gradguard.reports.printable import shown

__all__ = ["render"]


def render(findings: Iterable[Finding], errors: Iterable[ReadError] = ()) -> str:
    """The report: one test suite a file. Where nothing was found, one test case that passes.

    What explains another of `findings` is part of its test case.
    """
    failed: dict[str, list[Folded]] = defaultdict(list)
    broken: dict[str, list[ReadError]] = defaultdict(list)
    for finding, because in folded(findings):
        failed[display_path(finding.location.path)].append((finding, because))
    for error in errors:
        broken[display_path(error.path)].append(error)
    root = ET.Element("testsuites", name="gradguard")
    _count(root, sum(map(len, failed.values())), sum(map(len, broken.values())))
    for path in sorted({*failed, *broken}):
        _suite(root, path, failed[path], broken[path])
    if not len(root):
        suite = ET.SubElement(root, "testsuite", name="gradguard")
        _count(suite, 0, 0)
        ET.SubElement(suite, "testcase", name="no findings", classname="gradguard")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(
    root: ET.Element, path: str, findings: Sequence[Folded], errors: Sequence[ReadError]
) -> None:
    suite = ET.SubElement(root, "testsuite", name=shown(path))
    _count(suite, len(findings), len(errors))
    for finding, because in findings:
        where = finding.location
        name = f"{finding.code} {finding.name}"
        case = _case(suite, path, name, where.line, where.cell)
        case.set("column", str(where.column))
        failure = ET.SubElement(
            case, "failure", type=finding.severity.label, message=shown(finding.message)
        )
        failure.text = "\n".join(map(shown, _text(finding, because)))
    for error in errors:
        case = _case(suite, path, "could not be used", error.line, error.cell)
        ET.SubElement(case, "error", message=shown(error.message))


def _case(suite: ET.Element, path: str, name: str, line: int, cell: int | None) -> ET.Element:
    place = f"line {line}" if cell is None else f"cell {cell}, line {line}"
    return ET.SubElement(
        suite,
        "testcase",
        name=f"{name} at {place}",
        classname=shown(path.removesuffix(".py").replace("/", ".")),
        file=shown(path),
        line=str(line),
    )


def _text(finding: Finding, because: Iterable[Finding]) -> list[str]:
    steps = [f"- {display_place(step.file, step.line)}: {step.message}" for step in finding.trace]
    steps += [f"- {text}" for _, text in explanations(finding, because)]
    fix = [f"fix: {finding.fix}"] if finding.fix else []
    return [f"{finding.place}: {finding.message}", *steps, *fix]


def _count(element: ET.Element, failures: int, errors: int) -> None:
    element.set("tests", str(failures + errors or 1))
    element.set("failures", str(failures))
    element.set("errors", str(errors))
