"""What pytest loads: options, the marker, the fixture, and the switch to the active part.

Everything else is imported only once the guard is on, or once a test asks for the fixture: an
installed plugin that nobody uses costs pytest's start next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradguard.aside import safely

if TYPE_CHECKING:
    from pytest_gradguard.plugin.active import GuardPlugin
    from pytest_gradguard.plugin.item import ItemGuard, NoGuard
    from pytest_gradguard.plugin.watches import NoWatches, Watches

_USAGE_ERROR = "gradguard_usage_error"

_MARKER = (
    "gradguard(allow=[...], expect=[...], fail_on='error'|'warning'|'never', reason=...): ignore "
    "the findings in allow, fail the test unless each finding in expect is reported, and set the "
    "lowest severity that fails it. Name findings by code ('GG103'), prefix ('GG1') or name "
    "('backward-through-worker-result'). Example: gradguard(allow=['GG101'], reason='read only')"
)


def __dir__() -> list[str]:
    """What is for pytest here, which looks at whatever is listed, twice: hooks and fixtures."""
    return [name for name in globals() if name.startswith("pytest_") or name in _FIXTURES]


_JUDGING = {"check_gradients", "watch_gradients"}
_FIXTURES = ("gradguard", *sorted(_JUDGING))

_safely = partial(safely, raises=(pytest.UsageError,))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradguard", "gradguard (gradients lost in parallel calls)")
    # The default is None, not False: an unset flag must not hide the ini key.
    group.addoption(
        "--gradguard",
        action="store_true",
        default=None,
        help="guard every test, and fail those that lose gradients",
    )
    group.addoption(
        "--gradguard-fail-on",
        metavar="{error,warning,never}",
        default=None,
        help="lowest severity that fails a test (default: error)",
    )
    group.addoption(
        "--gradguard-report",
        metavar="FILE",
        default=None,
        help="write all findings to FILE, as JSON",
    )
    group.addoption(
        "--gradguard-annotate",
        metavar="{auto,always,never}",
        default=None,
        help="write GitHub annotations (auto: in GitHub Actions)",
    )
    group.addoption(
        "--gradguard-html",
        metavar="FILE",
        default=None,
        help="write all findings to FILE, as an HTML page",
    )
    group.addoption(
        "--gradguard-compare",
        action="store_true",
        default=False,
        help="fail tests whose gradients differ without workers",
    )
    group.addoption(
        "--gradguard-simulate-gpu",
        metavar="N",
        default=None,
        help="guard every test, with N GPUs simulated on the CPU",
    )
    parser.addini("gradguard", "same as --gradguard", type="bool", default=False)
    parser.addini("gradguard_fail_on", "same as --gradguard-fail-on", default=None)
    parser.addini(
        "gradguard_ignore",
        "codes, prefixes or names of findings to ignore",
        type="args",
        default=None,
    )
    parser.addini("gradguard_report", "same as --gradguard-report, relative to rootdir")
    parser.addini("gradguard_html", "same as --gradguard-html, relative to rootdir")
    parser.addini("gradguard_simulate_gpu", "same as --gradguard-simulate-gpu", default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before any conftest is imported: it may lose gradients, and ask for simulated GPUs.
    options = early_config.known_args_namespace
    value = options.gradguard_simulate_gpu
    if value is None:
        value = early_config.getini("gradguard_simulate_gpu") or None
    if value is not None:
        from pytest_gradguard.plugin.simulating import start

        _safely(start, early_config, value)
    if value or _is_on(early_config, options):
        from pytest_gradguard.plugin.outside import outside_of_tests

        _safely(outside_of_tests, early_config)


def _is_on(config: pytest.Config, options: Any) -> bool:
    """Whether all tests are guarded; of an ini key that is not usable, `pytest_configure` tells."""
    try:
        return bool(options.gradguard or config.getini("gradguard"))
    except (TypeError, ValueError, pytest.UsageError):
        return False


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    option = config.option
    try:
        simulated = option.gradguard_simulate_gpu or config.getini("gradguard_simulate_gpu")
        everywhere = bool(config.getini("gradguard") or option.gradguard or simulated)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"ini key gradguard: {error} (allowed: true, false)") from None
    if simulated:
        from pytest_gradguard.plugin.simulating import start
        from pytest_gradguard.runtime.kernel.simulated_devices import pretended

        if not pretended():  # a conftest has named this plugin: it starts late
            _safely(start, config, simulated)
    if option.gradguard_compare:
        if everywhere:
            raise pytest.UsageError(
                "--gradguard-compare guards tests by itself: use it without --gradguard"
            )
        _safely(_compare, config)
    keys = ("gradguard_fail_on", "gradguard_ignore", "gradguard_report", "gradguard_html")
    if everywhere or _flag(config) is not None:
        _safely(_activate, config, everywhere=everywhere)
    elif any(config.getini(key) for key in keys):
        from pytest_gradguard.plugin.settings import read_settings

        _safely(read_settings, config)  # the fixture will use them: bad values are refused now


def pytest_sessionstart(session: pytest.Session) -> None:
    manager = session.config.pluginmanager
    if manager.has_plugin("dsession") and _active(session.config) is None:
        manager.register(_Listener(session.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, Any, Any]:
    collected = list(items)  # also those that will be deselected: their markers are checked too
    result = yield
    marked = [item for item in collected if item.get_closest_marker("gradguard")]
    if marked:
        from pytest_gradguard.plugin.settings import check_markers

        try:
            _safely(check_markers, marked)
        except pytest.UsageError as error:
            _refuse(config, items, str(error))
    if any("gradguard" in getattr(item, "fixturenames", ()) for item in items):
        _safely(_activate, config, everywhere=False)
    elif items and (ineffective := _safely(_ineffective_flag, config, items)):
        _refuse(config, items, ineffective)
    return result


def _ineffective_flag(config: pytest.Config, items: list[pytest.Item]) -> str | None:
    """The error for a flag that has no effect: no test is guarded or watches gradients."""
    if any(_JUDGING & set(getattr(item, "fixturenames", ())) for item in items):
        return None
    flag = _flag(config)
    if flag is None or ((active := _active(config)) is not None and active.everywhere):
        return None
    return (
        f"{flag} has no effect: --gradguard is missing, and no test uses the fixture gradguard, "
        "watch_gradients or check_gradients"
    )


def _compare(config: pytest.Config) -> None:
    from pytest_gradguard.plugin.comparing import NAME, ComparePlugin
    from pytest_gradguard.plugin.unrewritten import import_as_installed

    import_as_installed(config)
    config.pluginmanager.register(ComparePlugin(), NAME)


def _flag(config: pytest.Config) -> str | None:
    """The first flag that only matters where tests are guarded; None where none is given."""
    for kind in ("fail-on", "report", "html", "annotate"):
        if getattr(config.option, f"gradguard_{kind.replace('-', '_')}") is not None:
            return f"--gradguard-{kind}"
    return None


def _refuse(config: pytest.Config, items: list[pytest.Item], message: str) -> None:
    """End the run.

    Raises:
        pytest.UsageError: always, but in a worker of xdist, where it would be a crash: there the
            controller raises it.
    """
    output = getattr(config, "workeroutput", None)
    if output is None:
        raise pytest.UsageError(message)
    output[_USAGE_ERROR] = message
    items.clear()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    message = (getattr(node, "workeroutput", None) or {}).get(_USAGE_ERROR)
    if message:
        raise pytest.UsageError(message)


@pytest.fixture
def gradguard(request: pytest.FixtureRequest) -> ItemGuard | NoGuard:
    """Guard the test: `findings` lists what was found so far, `allow("GG101")` ignores a code.

    `allow` is a context manager: ``with gradguard.allow("GG101", reason="read only"):``. Without
    --gradguard, only the tests that use this fixture are guarded.
    """
    of_test: ItemGuard | None = _safely(_guard_of, request)
    if of_test is not None:
        return of_test
    from pytest_gradguard.plugin.item import NoGuard

    return NoGuard()


def _guard_of(request: pytest.FixtureRequest) -> ItemGuard:
    """The guard of the test that asks.

    Raises:
        pytest.UsageError: an option, an ini key or a marker is not usable.
    """
    return _activate(request.config, everywhere=False).guard_of(request.node)


@pytest.fixture
def watch_gradients(request: pytest.FixtureRequest) -> Iterator[Watches | NoWatches]:
    """Fail the test if a watched tensor has no gradient at its end.

    Call ``watch_gradients(model)`` before the forward pass, once for each model; its arguments
    are those of `pytest_gradguard.watch_gradients`, such as ``allow_none=["frozen.*"]``. The
    failure (GG104) names each tensor without a gradient, and the reason.
    """
    from pytest_gradguard.plugin.watches import NoWatches, Watches

    watches: Watches | None = _safely(Watches.of, request)
    yield NoWatches() if watches is None else watches
    if watches is not None:
        _safely(watches.close)


@pytest.fixture
def check_gradients() -> Callable[..., Any]:
    """Fail the test unless the gradients of a loss are its numerical derivatives.

    Call ``check_gradients(closure, model)``: the closure takes no arguments and returns the loss.
    This is `pytest_gradguard.check_gradients`; the failure (GG115) names the parameters, with both
    numbers for each, and the reason.
    """
    from pytest_gradguard.checking import check_gradients

    return check_gradients


def _active(config: pytest.Config) -> GuardPlugin | None:
    """The active part, where it is registered."""
    from pytest_gradguard.plugin.names import ACTIVE

    known: GuardPlugin | None = config.pluginmanager.get_plugin(ACTIVE)
    return known


def _activate(config: pytest.Config, *, everywhere: bool) -> GuardPlugin:
    """The active part, registered if it is not yet there.

    Raises:
        pytest.UsageError: an option or an ini key is not usable.
    """
    known = _active(config)
    if known is not None:
        return known
    from pytest_gradguard.plugin.unrewritten import import_as_installed

    import_as_installed(config)
    from pytest_gradguard.plugin.active import GuardPlugin
    from pytest_gradguard.plugin.names import ACTIVE
    from pytest_gradguard.plugin.settings import read_settings

    plugin = GuardPlugin(config, read_settings(config), everywhere=everywhere)
    config.pluginmanager.register(plugin, ACTIVE)
    return plugin


class _Listener:
    """On an xdist controller with the guard off: wakes the active part for tests that use it.

    Tests are collected in the workers, so only their reports tell that one asked for the fixture.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from pytest_gradguard.plugin.names import PROPERTY

        if _active(self._config) is not None:
            return
        if any(name == PROPERTY for name, _ in report.user_properties):
            active = _safely(_activate, self._config, everywhere=False)
            if active is not None:
                active.pytest_runtest_logreport(report)
