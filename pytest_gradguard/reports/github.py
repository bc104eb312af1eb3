"""Annotations of GitHub Actions: workflow commands, one line a loss or other finding.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_gradguard.findings import (
    Finding,
    ReadError,
    Severity,
    display_path,
)
from pytest_gradguard.reports.overview import explanations, folded
from pytest_gradguard.reports.printable import shown, shown_lines

__all__ = ["lines"]

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def lines(
    findings: Iterable[Finding],
    errors: Iterable[ReadError] = (),
    base: str = "",
    notices: Iterable[str] = (),
) -> Iterator[str]:
    """The annotation of each finding, of each file that could not be used, and of `notices`.

    What explains another of `findings` is part of its annotation. Paths are relative to the folder
    `base`, by default the current one.
    """
    for one, because in folded(findings):
        told = [text for _, text in explanations(one, because)]
        path = os.path.join(base, one.location.path)
        finding = replace(one, location=replace(one.location, path=path))
        where = finding.location.to_dict()
        properties: dict[str, object] = {
            "title": f"gradguard {finding.code} {finding.name}",
            "file": _file(finding.location.path),
        }
        if finding.location.cell is None:  # the lines of a cell are not those of its file
            properties |= {"line": where["line"], "endLine": where["end_line"]}
        if "line" in properties and where["line"] == where["end_line"]:  # columns of one line only
            properties |= {"col": where["column"], "endColumn": where["end_column"]}
        text = "\n".join([finding.message, *told, *[f"Fix: {finding.fix}"] * bool(finding.fix)])
        place = f"{shown(finding.place)}: {finding.code} "
        yield _command(_COMMANDS[finding.severity], properties, place + text)
    for error in errors:
        properties = {"title": "gradguard", "file": _file(error.path)}
        if error.cell is None:
            properties["line"] = error.line
        yield _command("error", properties, f"{shown(error.place)}: {error.message}")
    for text in notices:
        yield _command("notice", {"title": "gradguard"}, text)


def _file(path: str) -> str:
    """`path` from the root of the workspace, where Actions look for it."""
    workspace = os.environ.get("GITHUB_WORKSPACE", "").rstrip(os.sep)
    absolute = os.path.abspath(path)
    if workspace and absolute.startswith(workspace + os.sep) and not path.startswith("<"):
        return absolute[len(workspace) + 1 :].replace(os.sep, "/")
    return display_path(path)


def _command(command: str, properties: dict[str, object], text: str) -> str:
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {listed}::{_encoded(shown_lines(text))}"


def _property(value: object) -> str:
    """`value`, whose newlines are encoded, and whose other control characters are shown."""
    text = "\r".join(map(shown_lines, str(value).split("\r")))
    return _encoded(text).replace(":", "%3A").replace(",", "%2C")


def _encoded(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
