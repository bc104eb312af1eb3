"""Which of the findings are shown: by code, by severity and by file, as each file's table says."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from gradguard_lint.rules import codes
from pytest_gradguard.cli.lint.options import Refused
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.project.configuration import Configuration, Configurations
    from gradguard_lint.project.files import Trouble
    from pytest_gradguard.details import FindingDetails
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.settings import Settings

__all__ = ["Selection", "split"]


@fields
class Selection:
    """What the command line says about codes and severities; None where it says nothing."""

    select: tuple[str, ...] | None
    extend: tuple[str, ...]
    ignore: tuple[str, ...]
    minimum: str | None

    @classmethod
    def from_options(cls, args: argparse.Namespace) -> Selection:
        """The selection of the command line.

        Raises:
            Refused: a code that there is not, or that the linter never reports; or nothing is left.
        """
        select = None if args.select is None else split(args.select)
        selection = cls(select, split(args.extend_select), split(args.ignore), args.min_severity)
        if select is not None and not select:
            raise Refused("--select names no code")
        selection._check(select or (), "--select")
        selection._check(selection.extend, "--extend-select")
        selection._check(selection.ignore, "--ignore", reported=False)
        from pytest_gradguard.settings import Settings

        if not selection.codes(Settings()):
            raise Refused("--ignore leaves out every code that is selected")
        return selection

    def _check(self, selectors: Sequence[str], option: str, *, reported: bool = True) -> None:
        try:
            missing = _never_reported(selectors)
        except ValueError as error:
            raise Refused(f"{option}: {error}") from None
        if missing and reported:
            raise Refused(f"{option} {_no_rule(missing)}")

    @property
    def info(self) -> bool | None:
        """Whether findings of severity info are looked for; None leaves it to the configuration."""
        if self.select is not None or self.extend:
            return True
        return None if self.minimum is None else self.minimum == "info"

    def codes(self, settings: Settings) -> frozenset[str]:
        """The codes that are shown where `settings` hold."""
        select = self.select if self.select is not None else settings.select
        extend = (*settings.extend_select, *self.extend)
        ignore = (*settings.ignore, *self.ignore)
        known = frozenset(codes())
        if select is None and not ignore:
            return known
        from pytest_gradguard.pitfalls import expand

        chosen = known if select is None else expand(select)
        return ((chosen | expand(extend)) - expand(ignore)) & known

    def lowest(self, settings: Settings) -> str:
        """The lowest severity that is shown where `settings` hold."""
        return self.minimum or settings.min_severity or "warning"

    def divide(
        self, raws: Sequence[dict[str, Any]], configurations: Configurations
    ) -> tuple[list[Finding], list[Finding]]:
        """The findings that are shown, and those that only their severity hides."""
        if not raws:
            return [], []
        from gradguard_lint.raw import wanted
        from pytest_gradguard.findings import Severity

        def selected(raw: dict[str, Any]) -> bool:
            return raw["code"] in self._codes_in(raw["path"], configurations.of(raw["path"]))

        shown: list[Finding] = []
        hidden: list[Finding] = []
        every = (*wanted(raws, selected), *filter(selected, raws))
        chosen = {_place(raw): raw for raw in every}
        for _, raw in sorted(chosen.items()):
            finding = _finding(raw)
            lowest = Severity.parse(self.lowest(configurations.of(raw["path"]).settings))
            (shown if finding.severity >= lowest else hidden).append(finding)
        return shown, hidden

    def _codes_in(self, path: str, configuration: Configuration) -> frozenset[str]:
        chosen = self.codes(configuration.settings)
        ignored = configuration.ignored_in(path)
        if not ignored:
            return chosen
        from pytest_gradguard.pitfalls import expand

        return chosen - expand(ignored)

    def problems(self, configurations: Sequence[Configuration]) -> list[Trouble]:
        """What the tables in use select although it is never reported, or that nothing is left."""
        from gradguard_lint.project.files import Trouble

        found = []
        for configuration in configurations:
            settings = configuration.settings
            missing = _never_reported((*(settings.select or ()), *settings.extend_select))
            if missing:
                found.append(Trouble(configuration.path, 1, f"`select`: {_no_rule(missing)}"))
        left = [bool(self.codes(configuration.settings)) for configuration in configurations]
        if left and not found and not any(left):
            message = "no code is left: none is selected, or all that are selected are ignored"
            path = configurations[0].path
            found.append(Trouble(path, 1 if path else 0, message))
        return found


def _place(raw: dict[str, Any]) -> tuple[str, int, int, int, str]:
    """Where a finding stands, as findings are sorted; no other is the same."""
    return raw["path"], raw.get("cell") or 0, raw["line"], raw["column"], raw["code"]


def split(values: Iterable[str] | None) -> tuple[str, ...]:
    """The items of options that take lists, with commas or given several times."""
    return tuple(
        item.strip() for value in values or () for item in value.split(",") if item.strip()
    )


def _never_reported(selectors: Sequence[str]) -> list[str]:
    """Those `selectors` that only stand for codes without a rule.

    Raises:
        ValueError: one of them stands for no code at all.
    """
    if not selectors:
        return []
    from pytest_gradguard.pitfalls import expand

    return [selector for selector in selectors if expand([selector]).isdisjoint(codes())]


def _no_rule(selectors: Sequence[str]) -> str:
    return (
        f"{', '.join(selectors)} selects nothing: `gradguard lint` has no rule for it, "
        "it is reported at run time only (see `gradguard rules`)"
    )


def _finding(raw: dict[str, Any]) -> Finding:
    """The finding that the plain data of the linter stands for."""
    from pytest_gradguard.findings import Finding, Location, Repair, Severity, TraceStep
    from pytest_gradguard.pitfalls import get

    pitfall = get(raw["code"])
    names = ("path", "line", "column", "end_line", "end_column", "function")
    place = {name: raw[name] for name in names}
    return Finding(
        code=raw["code"],
        name=pitfall.name,
        severity=Severity.parse(raw["severity"]) if raw["severity"] else pitfall.severity,
        origin="lint",
        message=raw["message"],
        fix=raw["advice"] or pitfall.advice_for(raw["case"]),
        edits=None if raw["edits"] is None else Repair.from_dict(raw["edits"]),
        location=Location(**place, cell=raw.get("cell"), executed=raw.get("executed")),
        trace=tuple(TraceStep(*step) for step in raw["trace"]),
        details=_with_shown_paths(raw["details"]),
    )


def _with_shown_paths(details: FindingDetails) -> FindingDetails:
    """`details`, where each place has the path that reports show."""
    from pytest_gradguard.findings import display_path

    shown: FindingDetails = {**details}
    place = details.get("handed_out_at")
    if place is not None:
        shown["handed_out_at"] = {**place, "path": display_path(place["path"])}
    if "also_from" in details:
        shown["also_from"] = [
            {**place, "path": display_path(place["path"])} for place in details["also_from"]
        ]
    return shown
