"""Flags, ini keys, markers and ``[tool.gradguard]``, checked and joined.

A marker goes before the command line, that before the ini keys, these before ``[tool.gradguard]``;
codes to leave out add up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_gradguard import settings
from pytest_gradguard.records import fields
from pytest_gradguard.severity import Severity
from pytest_gradguard.suggestions import did_you_mean

__all__ = ["MarkerSettings", "Settings", "check_markers", "marker_settings", "read_settings"]

_FAIL_ON = {"error": Severity.ERROR, "warning": Severity.WARNING, "never": None}
_MARKER_KEYWORDS = ("allow", "expect", "fail_on", "reason")
_ANNOTATE = ("auto", "always", "never")


@fields
class Settings:
    """What holds for the whole run. `fail_on` None: findings fail no test."""

    fail_on: Severity | None
    ignore: frozenset[str]
    report: Path | None
    html: Path | None
    annotate: bool


@fields
class MarkerSettings:
    """What the markers of one test say.

    Attributes:
        allow: the codes to leave out.
        expect: what has to be found, as written, each with the codes that it stands for.
        fail_on: a name, or None where no marker sets it.
    """

    allow: frozenset[str]
    expect: tuple[tuple[str, frozenset[str]], ...]
    fail_on: str | None

    @property
    def expected(self) -> frozenset[str]:
        """All codes that are expected."""
        return frozenset().union(*(codes for _, codes in self.expect))

    def fails_at(self, of_run: Settings) -> Severity | None:
        """The lowest severity that fails this test; None: none does."""
        return of_run.fail_on if self.fail_on is None else _FAIL_ON[self.fail_on]


def read_settings(config: pytest.Config) -> Settings:
    """The settings of the run.

    Raises:
        pytest.UsageError: a value is not usable; one line names it and what is allowed.
    """
    option = config.option
    table = _table(config)
    if option.gradguard_fail_on is not None:
        fail_on = _fail_on(option.gradguard_fail_on, "--gradguard-fail-on")
    else:
        value = _ini(config, "gradguard_fail_on") or table.fail_on or "error"
        fail_on = _fail_on(value, "ini key gradguard_fail_on")
    ignore = _codes(_ini(config, "gradguard_ignore") or (), "ini key gradguard_ignore")
    annotate = "auto" if option.gradguard_annotate is None else option.gradguard_annotate
    if annotate not in _ANNOTATE:
        raise pytest.UsageError(
            f"--gradguard-annotate: unknown value {annotate!r} (allowed: {', '.join(_ANNOTATE)})"
        )
    if annotate == "auto":
        annotate = "always" if os.environ.get("GITHUB_ACTIONS") == "true" else "never"
    return Settings(
        _FAIL_ON[fail_on],
        ignore | table.ignored_codes(),
        *_files(config),
        annotate == "always",
    )


def _table(config: pytest.Config) -> settings.Settings:
    """What the nearest ``pyproject.toml`` with a table says, at or above the root folder."""
    try:
        return settings.nearest(str(config.rootpath))
    except settings.SettingsError as error:
        raise pytest.UsageError(str(error)) from None


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Check the `gradguard` markers of all `items`.

    Raises:
        pytest.UsageError: one of them is not usable; one line names the test and the reason.
    """
    for item in items:
        marker_settings(item)


def marker_settings(item: pytest.Item) -> MarkerSettings:
    """What the markers of `item`, its class and its module say together.

    Codes to allow and to expect add up; of several `fail_on` the closest wins.

    Raises:
        pytest.UsageError: a marker is not usable.
    """
    allow: frozenset[str] = frozenset()
    expect: dict[str, frozenset[str]] = {}
    fail_on: str | None = None
    for mark in item.iter_markers("gradguard"):
        where = f"{item.nodeid}: marker gradguard"
        if mark.args:
            raise pytest.UsageError(
                f"{where} takes keywords only, not {mark.args[0]!r} "
                f"(allowed: {', '.join(_MARKER_KEYWORDS)})"
            )
        for keyword in mark.kwargs:
            if keyword not in _MARKER_KEYWORDS:
                raise pytest.UsageError(
                    f"{where} has no keyword {keyword!r}{did_you_mean(keyword, _MARKER_KEYWORDS)} "
                    f"(allowed: {', '.join(_MARKER_KEYWORDS)})"
                )
        allow |= _codes(mark.kwargs.get("allow") or (), f"{where}, allow")
        source = f"{where}, expect"
        for selector in _selectors(mark.kwargs.get("expect") or (), source):
            key = selector if "-" in selector else selector.upper()
            expect[key] = _expand([selector], source)
        if fail_on is None and mark.kwargs.get("fail_on") is not None:
            fail_on = _fail_on(mark.kwargs["fail_on"], f"{where}, fail_on")
        reason = mark.kwargs.get("reason")
        if reason is not None and not isinstance(reason, str):
            raise pytest.UsageError(f"{where}, reason: {reason!r} is not a string")
    return MarkerSettings(allow, tuple(expect.items()), fail_on)


def _ini(config: pytest.Config, key: str) -> Any:
    try:
        return config.getini(key)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"ini key {key}: {error}") from None


def _fail_on(value: object, source: str) -> str:
    if isinstance(value, str) and value in _FAIL_ON:
        return value
    raise pytest.UsageError(f"{source}: unknown value {value!r} (allowed: {', '.join(_FAIL_ON)})")


def _files(config: pytest.Config) -> tuple[Path | None, Path | None]:
    """Where the JSON report and the HTML page go."""
    report, page = _file(config, "report"), _file(config, "html")
    if report is not None and page is not None:
        from pytest_gradguard.reports.file import check_apart

        try:
            check_apart(report, page)
        except ValueError as error:
            raise pytest.UsageError(f"--gradguard-html: {error}") from None
    return report, page


def _file(config: pytest.Config, kind: str) -> Path | None:
    """Where the report of that kind goes, by its option or its ini key."""
    if hasattr(config, "workerinput"):
        return None  # the controller writes it, and has checked the path
    option: str | None = getattr(config.option, f"gradguard_{kind}")
    if option is not None:
        return _report(option, config.invocation_params.dir, f"--gradguard-{kind}")
    key = f"gradguard_{kind}"
    value = _ini(config, key)
    return _report(value, config.rootpath, f"ini key {key}") if value else None


def _report(value: str, base: Path, source: str) -> Path:
    if not value:
        raise pytest.UsageError(f"{source}: the name of the file is empty")
    from pytest_gradguard.reports.file import check_writable

    path = base / Path(value).expanduser()
    try:
        check_writable(path)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None
    return path


def _codes(value: str | Sequence[object], source: str) -> frozenset[str]:
    """The codes that `value`, one string or several, names."""
    return _expand(_selectors(value, source), source)


def _selectors(value: str | Sequence[object], source: str) -> list[str]:
    """The codes and prefixes in `value`, one string or several."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple | set | frozenset):
        raise pytest.UsageError(f"{source}: {value!r} is neither a code nor a list of codes")
    selectors: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            raise pytest.UsageError(f"{source}: {text!r} is not a code (allowed: such as 'GG101')")
        selectors.extend(text.replace(",", " ").split())
    return selectors


def _expand(selectors: Sequence[str], source: str) -> frozenset[str]:
    if not selectors:
        return frozenset()
    from pytest_gradguard.pitfalls import expand

    try:
        return expand(selectors)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None
