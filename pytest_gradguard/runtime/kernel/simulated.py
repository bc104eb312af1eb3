"""Simulated GPUs, if the program has any: the workers get them, too.

It checks for no pitfall. Its question switches the simulation on in the worker as it is unpickled,
before the tasks' own arguments.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.probes import After

PROBES = (Probe("simulated", __name__, asks=(simulated_devices.PROVIDER,)),)


def ask(call: Any) -> Any:
    """Return the active simulation; it is sent before the tasks."""
    simulation = simulated_devices.current
    if simulation is not None and simulation.pretended():
        return simulation.carried(call.collector.number)
    return None


def begin(asked: Any, process: bool) -> After | None:
    """Apply the simulation to this thread, which may be older, or not have unpickled it."""
    simulation = simulated_devices.current
    leave = None if simulation is None else simulation.enter_thread()
    if leave is None:
        return None

    def after(items: Any, results: Any, error: BaseException | None) -> None:
        leave()

    return after
