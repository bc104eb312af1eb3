"""A test that fails because of its findings: the exception, and what pytest shows of it."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_gradguard.findings import Finding
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.reports.text import Style, blocks, plain, width_of

__all__ = ["COLUMNS", "FailureRepr", "GradGuardFailure", "columns", "lines", "terminal_style"]

COLUMNS = "gradguard_columns"
"""What xdist workers are told the width of the terminal as."""

_MARKUP: dict[str, dict[str, bool]] = {
    "error": {"red": True, "bold": True},
    "warning": {"yellow": True, "bold": True},
    "info": {"cyan": True, "bold": True},
    "strong": {"bold": True},
    "dim": {"light": True},
}


class GradGuardFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Fails the test whose findings reach `fail_on`."""

    def __init__(self, findings: Sequence[Finding], base: str) -> None:
        self.findings = tuple(findings)
        self.base = base
        super().__init__(msg="\n".join(lines(self.findings, base)), pytrace=False)


def lines(
    findings: Iterable[Finding], base: str, style: Style = plain, width: int | None = None
) -> list[str]:
    """The lines that show `findings`, whose paths are relative to `base`."""

    def source_line(path: str, line: int) -> str:
        return linecache.getline(os.path.join(base, path), line)

    return list(blocks(findings, style=style, source_line=source_line, width=width))


def columns(config: pytest.Config) -> int | None:
    """The width of the terminal, where it is known; the workers of xdist are told it."""
    told = getattr(config, "workerinput", None)
    if told is not None:
        known: int | None = told.get(COLUMNS)
        return known
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    return width_of(getattr(getattr(terminal, "_tw", None), "_file", None))


def terminal_style(writer: Any) -> Style:
    """A style in pytest's own colours, or none where its terminal shows none."""

    def style(role: str, text: str) -> str:
        marked: str = writer.markup(text, **_MARKUP.get(role, {}))
        return marked

    return style


class FailureRepr:
    """What pytest shows of a `GradGuardFailure`: its findings, and nothing of the plugin's frames.

    In one process it is written in colour. Under xdist pytest takes `reprcrash` and
    `reprtraceback` apart and puts them together in the controller, so they hold the same text.
    """

    def __init__(
        self,
        failure: GradGuardFailure,
        excinfo: pytest.ExceptionInfo[BaseException],
        width: int | None,
    ) -> None:
        self._failure = failure
        self._width = width
        self._text = "\n".join(lines(failure.findings, failure.base, width=width))
        first = failure.findings[0]
        native: Any = excinfo.getrepr(style="native")
        native.reprtraceback.reprentries = native.reprtraceback.reprentries[:1]
        native.reprtraceback.reprentries[0].lines = [self._text + "\n"]
        self.reprtraceback = native.reprtraceback
        self.reprcrash = native.reprcrash
        self.reprcrash.path = first.location.path
        self.reprcrash.lineno = first.location.line
        self.reprcrash.message = shown(f"{first.code} {first.name}: {first.message}")
        self.sections: list[tuple[str, str, str]] = native.sections

    def __str__(self) -> str:
        return self._text

    def toterminal(self, writer: Any) -> None:
        """Write the findings to pytest's terminal `writer`."""
        style = terminal_style(writer)
        for line in lines(self._failure.findings, self._failure.base, style, self._width):
            writer.line(line)
        for name, content, separator in self.sections:
            writer.sep(separator, name)
            writer.line(content)
