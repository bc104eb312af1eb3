"""The fixture `watch_gradients`: the watches of one test, and its failure with GG104."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from pytest_gradguard.findings import Finding
from pytest_gradguard.gradients.watch import REFUSED, Watch
from pytest_gradguard.messages import GradGuardWarning
from pytest_gradguard.plugin.names import ACTIVE
from pytest_gradguard.runtime.kernel.faults import attempt, checked, theirs_only
from pytest_gradguard.suggestions import did_you_mean

__all__ = ["NoWatches", "Watches"]

_NAME = "gradguard-watches"
_WATCHES = pytest.StashKey["Watches"]()


_FORGOTTEN = (
    "the test uses the fixture `watch_gradients` but never calls it, so nothing is watched: "
    "call `watch_gradients(model)` before the forward pass"
)


class Watches:
    """What the fixture hands to a test: call it to watch something until the test's end."""

    def __init__(self, item: pytest.Item) -> None:
        function = inspect.unwrap(getattr(item, "function", lambda: None))
        self._code = getattr(function, "__code__", None)
        self._asked = attempt(_asks_for, item, self._code, instead=False)
        self._item = item
        self._called = False
        self._open: list[Watch] = []
        self._test: FrameType | None = None

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> Watches:
        """The watches of the test that asks."""
        manager = request.config.pluginmanager
        if not manager.has_plugin(_NAME):
            manager.register(_Checker(), _NAME)
        item: pytest.Item = request.node
        watches = item.stash[_WATCHES] = cls(item)
        return watches

    def __call__(
        self,
        watched: Any,
        *more: Any,
        allow_none: str | Iterable[str] = (),
        finite: bool = True,
        nonzero: bool = False,
        steps: int | None = None,
        **unknown: Any,
    ) -> Watch:
        """Watch `watched` from now to the test's end, or to that of a `with` block over the result.

        With `steps`, it is judged after so many optimizer steps, and the test fails at its end.

        Raises:
            TypeError: `watched` holds something that cannot be watched, or an option or its value
                is not known.
            ValueError: there is nothing to watch.
        """
        __tracebackhide__ = True
        self._called = True
        with theirs_only:
            if more:
                raise TypeError(
                    "watch_gradients watches one argument: put several things into a list or dict, "
                    "and give options by name (allow_none=…)"
                )
            for name in unknown:
                allowed = ("allow_none", "finite", "nonzero", "steps")
                raise TypeError(
                    f"watch_gradients has no option {name!r}{did_you_mean(name, allowed)} "
                    f"(allowed: {', '.join(allowed)})"
                )
            made = checked(
                REFUSED,
                Watch,
                watched,
                allow_none=allow_none,
                finite=finite,
                nonzero=nonzero,
                steps=steps,
                raises=False,
                permitted=attempt(_permitted, self._item, instead=False),
            )
        watch: Watch = made or Watch.idle()
        attempt(watch.start)
        self._open.append(watch)
        if self._test is None:
            # The test's own frame keeps its variables until the verdict, and nothing longer.
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code is not self._code:
                frame = frame.f_back
            self._test = frame
        return watch

    def forgotten(self) -> bool:
        """Whether the test itself asks for the fixture, and never called it."""
        return self._asked and not self._called

    def check(self) -> list[Finding]:
        """End all watches; what they found, each finding once.

        Raises:
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        found: dict[object, tuple[Finding, list[Watch]]] = {}
        watches = list(self._open)
        unknown: ValueError | None = None
        try:
            for watch in watches:
                if watch.is_open or watch.judged:
                    try:
                        findings = watch.stop()
                    except ValueError as error:  # what others have found comes first
                        unknown = unknown or error
                        continue
                    for finding in findings:
                        key = (finding.key, finding.message)
                        found.setdefault(key, (finding, []))[1].append(watch)
        finally:
            self.close()
        if unknown is not None and not found:
            raise unknown
        return [_of_watches(finding, those, watches) for finding, those in found.values()]

    def close(self) -> None:
        """End all watches without a verdict."""
        for watch in self._open:
            watch.close()
        self._open.clear()
        self._test = None


def _of_watches(finding: Finding, those: list[Watch], every: list[Watch]) -> Finding:
    """`finding`, which says of which watches it is, where the test has several."""
    if len(every) == 1 or len(those) == len(every):
        return finding
    labels = list(dict.fromkeys(f"`{watch.label}`" for watch in those if watch.label))[:_LABELS]
    numbers = [str(every.index(watch) + 1) for watch in those]
    many = f"{', '.join(numbers[:_LABELS])}{' …' if len(numbers) > _LABELS else ''}"
    what = f"{' and '.join(labels)}, " if labels else ""
    several = "watch" if len(those) == 1 else "watches"
    text = f"{finding.message} (This is {what}{several} {many} of {len(every)} in this test.)"
    return replace(finding, message=text)


_LABELS = 4


class NoWatches:
    """What the fixture hands to a test where the guard itself fails: it watches nothing."""

    def __call__(self, watched: Any, **options: Any) -> Watch:
        """As for `Watches`."""
        return Watch.idle()


def _asks_for(item: pytest.Item, code: Any) -> bool:
    """Whether the test names the fixture itself, as an argument or in `usefixtures`."""
    arguments = (
        () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    )
    marked = {name for mark in item.iter_markers("usefixtures") for name in mark.args}
    return "watch_gradients" in {*arguments, *marked}


class _Checker:
    """Looks at the watches of a test as soon as it has passed, and words its failure."""

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        watches = item.stash.get(_WATCHES, None)
        if watches is None:
            return (yield)
        try:
            result = yield
        except BaseException:
            attempt(watches.close)
            raise
        refused = ""
        findings: list[Finding] = []
        try:
            findings = checked((ValueError,), watches.check, instead=[])
        except ValueError as error:
            refused = str(error)
        if refused:
            pytest.fail(f"watch_gradients: {refused}", pytrace=False)
        if findings:
            attempt(_fail, item, findings)
        else:
            attempt(_require, item)
        if attempt(watches.forgotten):
            item.warn(GradGuardWarning(_FORGOTTEN))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and item.stash.get(_WATCHES, None) is not None:
            from pytest_gradguard.plugin.failure import FailureRepr, GradGuardFailure, columns

            if isinstance(call.excinfo.value, GradGuardFailure):
                width = attempt(columns, item.config)
                shown = attempt(FailureRepr, call.excinfo.value, call.excinfo, width)
                report.longrepr = shown or report.longrepr
        return report


def _fail(item: pytest.Item, findings: list[Finding]) -> None:
    """Fail the test with `findings`, unless it expects them.

    Raises:
        GradGuardFailure: it does not.
    """
    __tracebackhide__ = True
    from pytest_gradguard.plugin.failure import GradGuardFailure
    from pytest_gradguard.plugin.settings import marker_settings
    from pytest_gradguard.plugin.transport import relative

    active: Any = item.config.pluginmanager.get_plugin(ACTIVE)
    if active is not None:
        active.take(item, findings)
    if "GG104" in marker_settings(item).expected:
        return
    base = str(item.config.invocation_params.dir)
    raise GradGuardFailure([relative(finding, base) for finding in findings], base)


def _permitted(item: pytest.Item) -> bool:
    """Whether the test or the run permits GG104."""
    from pytest_gradguard.plugin.settings import marker_settings, read_settings

    said = marker_settings(item)
    return "GG104" in (said.allow | read_settings(item.config).ignore) - said.expected


def _require(item: pytest.Item) -> None:
    """Fail a test that expects GG104 and did not get it; a guarded test is judged by its guard.

    Raises:
        pytest.fail.Exception: the gradients arrived.
    """
    __tracebackhide__ = True
    from pytest_gradguard.plugin.settings import marker_settings

    if ("GG104", frozenset({"GG104"})) in marker_settings(item).expect:
        from pytest_gradguard.plugin.item import not_found

        active: Any = item.config.pluginmanager.get_plugin(ACTIVE)
        if active is None or not active.guards(item):
            pytest.fail(not_found(["GG104"], ()), pytrace=False)
