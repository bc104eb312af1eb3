"""Simulated GPUs, where the program asked for them: the workers have them, too.

No pitfall is looked for here. What is asked switches the simulation on in the worker as it is
unpickled, before the tasks' own arguments are.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.probes import After

PROBES = (Probe("simulated", __name__, asks=(simulated_devices.PROVIDER,)),)


def ask(call: Any) -> Any:
    """The simulation that is on; it travels before the tasks."""
    simulation = simulated_devices.current
    if simulation is not None and simulation.pretended():
        return simulation.carried(call.collector.number)
    return None


def begin(asked: Any, process: bool) -> After | None:
    """Have the simulation see this thread, which may be older, or not the one that unpickled."""
    simulation = simulated_devices.current
    leave = None if simulation is None else simulation.enter_thread()
    if leave is None:
        return None

    def after(items: Any, results: Any, error: BaseException | None) -> None:
        leave()

    return after
