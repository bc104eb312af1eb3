"""The guard of what runs outside of tests: conftests, the import of test modules, hooks."""

from __future__ import annotations

import pytest

from pytest_gradguard.plugin.unrewritten import import_as_installed

__all__ = ["outside_of_tests"]

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from pytest_gradguard.runtime import Report

_REPORT: pytest.StashKey[Report] = pytest.StashKey()


def outside_of_tests(config: pytest.Config) -> Report:
    """Findings outside of tests, from the first call until the run of `config` ends."""
    known = config.stash.get(_REPORT, None)
    if known is None:
        import_as_installed(config)
        from pytest_gradguard.runtime import guard
        from pytest_gradguard.runtime.kernel.faults import attempt

        block = guard(mode="record")
        known = config.stash[_REPORT] = block.__enter__()
        config.add_cleanup(lambda: attempt(block.__exit__, None, None, None))
    return known
