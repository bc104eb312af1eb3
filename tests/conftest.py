"""What all tests share."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import scheduling
import shared_results
import warm

# A run of pytest inside this process (pytester) forgets the modules that it has imported: the
# guard's own must not be among them.
from pytest_gradguard.runtime import integrations, starting

integrations.load()
for _module in (
    *(
        found.name
        for found in pkgutil.walk_packages(integrations.__path__, f"{integrations.__name__}.")
        if found.name != f"{integrations.__name__}.joblib.worker_batch"  # it imports joblib
    ),
    *(
        f"pytest_gradguard.runtime.pitfalls.{ours}"
        for library, ours in (*starting.AWAITED, *starting.IN_WORKERS)
        if importlib.util.find_spec(library.partition(".")[0])
    ),
):
    importlib.import_module(_module)

pytest_plugins = ["pytester"]
HOSTS = Path(__file__).parents[1] / "requirements-hosts.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-skipped", type=Path, metavar="FILE", help="write the ids of skipped tests to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    if warm.can_run(os.environ) and importlib.util.find_spec("torch"):
        import warm_workers

        warm_workers.Nursery(warm.workers, dict(os.environ)).serve()
    if shared_results.ANEW and not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.Stopwatch())
    if config.option.write_skipped and not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.SkippedTests(config.option.write_skipped))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        scheduling.longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scheduling.group_of(nodeid)

    config.option.loadscopereorder = False  # by number of tests: they come in the right order
    return Groups(config, log)


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """What a library sets in the environment as it is imported does not outlive the test.

    Lightning changes in this way how torch looks for GPUs, in every later child process too.
    """
    with mock.patch.dict(os.environ):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which of the heavy libraries are not there, whose tests are skipped."""
    lines = HOSTS.read_text(encoding="utf-8").splitlines()
    hosts = [line for line in lines if line[:1].isalpha()]
    absent = [host for host in hosts if not list(importlib.metadata.distributions(name=host))]
    if absent:
        left_out = f"Left out are tests of what is not installed: {', '.join(absent)}"
        terminalreporter.write_line(f"{left_out} (make hosts installs it)")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        shared_results.forget(report.nodeid)
