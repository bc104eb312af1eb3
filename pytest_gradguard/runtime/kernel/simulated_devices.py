"""The kernel's interface to simulated GPUs: their package registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

PROVIDER = "pytest_gradguard.simulation"
"""The package that registers itself as it is imported."""


class Simulation(Protocol):
    """Simulates GPUs in this process, and in workers that run its tasks."""

    def start(self, devices: int) -> None:
        """Simulate this many GPUs from now on. Calls nest."""

    def stop(self) -> None:
        """Undo one `start`."""

    def pretended(self) -> int:
        """How many GPUs are simulated now; 0: none."""

    def carried(self, home: int) -> Any:
        """An object sent to a worker before its tasks, which simulates the GPUs there on arrival.

        Args:
            home: a number of the test that the tasks belong to.
        """

    def enter_thread(self) -> Callable[[], None] | None:
        """Simulate them in this thread, which runs tasks; returns how to end that, or None."""

    def during(self, carried: Any) -> AbstractContextManager[None]:
        """A block in which a task runs in a worker with other concurrent tasks."""

    def depart(self) -> None:
        """End what came with tasks, whose results are on their way."""


current: Simulation | None = None
device_of: Callable[[Any], Any] | None = None
"""The simulated GPU of a tensor, if any, for use in any thread."""
generators: list[type] = []
"""The classes of the random generators on simulated GPUs."""


def register(simulation: Simulation) -> None:
    """Register the simulation of GPUs."""
    global current
    current = simulation


def load() -> Simulation:
    """The simulation, which the program requests."""
    if current is None:
        import_module(PROVIDER)
    assert current is not None
    return current


def pretended() -> int:
    """How many GPUs are simulated now."""
    return 0 if current is None else current.pretended()
