"""The linter over an editor's folders, with what is not saved yet."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradguard_lint.project.configuration import Configurations
from gradguard_lint.project.files import Trouble
from gradguard_lint.run import Request
from gradguard_lint.run import run as lint
from pytest_gradguard.cli.lint.selection import Selection
from pytest_gradguard.findings import Finding
from pytest_gradguard.reports.overview import linked

__all__ = ["Checked", "check"]


class Checked(NamedTuple):
    """What one check found, by the absolute paths of files.

    Attributes:
        findings: those that each file's configuration shows; notebooks are no text documents.
        problems: configurations that cannot be used.
    """

    findings: Mapping[str, list[Finding]]
    problems: Mapping[str, list[Trouble]]


def check(folders: Iterable[str], unsaved: Mapping[str, bytes]) -> Checked:
    """Check `folders`, and the files of `unsaved` outside of them.

    It is the same run as that of ``gradguard lint`` there, in one process: the server has threads,
    and does not fork.

    Args:
        folders: absolute paths.
        unsaved: what the editor holds, by the absolute paths of its files.
    """
    configurations = Configurations()
    files = (path for path in unsaved if os.path.exists(path))
    request = Request((*folders, *files), configurations, force_exclude=True, jobs=1, over=unsaved)
    outcome = lint(request)
    outcome.place_in_cells()
    shown, _ = Selection(None, (), (), None).divide(outcome.findings, configurations)
    findings: dict[str, list[Finding]] = defaultdict(list)
    for finding in linked(one for one in shown if one.location.cell is None):
        findings[os.path.abspath(finding.location.path)].append(finding)
    problems: dict[str, list[Trouble]] = defaultdict(list)
    for error in outcome.errors:
        if error.path.endswith(".toml"):  # that a file is no Python, the editor says itself
            problems[os.path.abspath(error.path)].append(error)
    return Checked(findings, problems)
