"""What the transfers ask of the rows."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.engine.machine import Machine
from gradguard_lint.models.rows import Registry


class Known:
    """The part of the models that holds the registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry


def registry_of(m: Machine) -> Registry:
    """The rows that hold in this run."""
    assert isinstance(m.models, Known)
    return m.models.registry


def start_called(m: Machine, name: str) -> Start:
    """The way to start workers called `name`."""
    return registry_of(m).starts[name]
