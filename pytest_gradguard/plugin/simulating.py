"""Simulated GPUs for a whole run of tests: ``--gradguard-simulate-gpu=N``."""

from __future__ import annotations

import pytest

from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.runtime.kernel import simulated_devices


def start(config: pytest.Config, value: str) -> None:
    """Simulate GPUs until the run that `config` belongs to has ended.

    Raises:
        pytest.UsageError: `value` is no number above 0, or this process uses a real GPU.
    """
    if is_disabled():
        return
    if not str(value).isdecimal() or int(value) < 1:
        raise pytest.UsageError(
            f"--gradguard-simulate-gpu: {value!r} is not a number of GPUs (allowed: 1 or more)"
        )
    try:
        simulation = simulated_devices.load()
        simulation.start(int(value))
    except RuntimeError as error:
        raise pytest.UsageError(f"--gradguard-simulate-gpu: {error}") from None
    config.add_cleanup(simulation.stop)
