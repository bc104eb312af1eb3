"""All that the guard knows of simulated GPUs: their package registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

PROVIDER = "pytest_gradguard.simulation"
"""The package that registers itself as it is imported."""


class Simulation(Protocol):
    """What simulates GPUs in this process, and brings them to workers with their tasks."""

    def start(self, devices: int) -> None:
        """Simulate so many GPUs from now on. Calls nest."""

    def stop(self) -> None:
        """Undo one `start`."""

    def pretended(self) -> int:
        """How many GPUs are simulated now; 0: none."""

    def carried(self, home: int) -> Any:
        """What travels to a worker before its tasks, and simulates the GPUs there as it arrives.

        Args:
            home: a number of the test that the tasks belong to.
        """

    def enter_thread(self) -> Callable[[], None] | None:
        """Let this thread, which runs tasks, have them; what ends that, or None: it has."""

    def during(self, carried: Any) -> AbstractContextManager[None]:
        """A block in which a task runs in a worker that runs others beside it."""

    def depart(self) -> None:
        """The results of tasks are on their way: end what came with them."""


current: Simulation | None = None
device_of: Callable[[Any], Any] | None = None
"""The simulated GPU on which a tensor lies, if any, asked in whichever thread."""
generators: list[type] = []
"""The classes of the random generators on simulated GPUs."""


def register(simulation: Simulation) -> None:
    """Let the guard know what simulates GPUs."""
    global current
    current = simulation


def load() -> Simulation:
    """What simulates GPUs, which the program asks for."""
    if current is None:
        import_module(PROVIDER)
    assert current is not None
    return current


def pretended() -> int:
    """How many GPUs are simulated now."""
    return 0 if current is None else current.pretended()
