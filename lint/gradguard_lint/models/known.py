"""What the transfers ask of the rows."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.domain.values import Value
from gradguard_lint.engine.imports import stub_value
from gradguard_lint.engine.machine import Machine
from gradguard_lint.models.rows import Registry
from gradguard_lint.models.stub_files import load, parsed


class Known:
    """The part of the models that holds the registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def stub(self, m: Machine, name: str) -> Value | None:
        """What a stub says that the full name `name` of a library is; None where none does."""
        for full in dict.fromkeys((name, self.registry.canonical(name))):
            module, _, own = full.rpartition(".")
            told = self.registry.own_stubs.get(full) or self.registry.own_stubs.get(module)
            path = self.registry.stubs.get(module)
            if told is not None and (found := stub_value(m, parsed(told), own)) is not None:
                return found
            if path is not None and (found := stub_value(m, load(path, module), own)) is not None:
                return found
        return None


def registry_of(m: Machine) -> Registry:
    """The rows that hold in this run."""
    assert isinstance(m.models, Known)
    return m.models.registry


def start_called(m: Machine, name: str) -> Start:
    """The way to start workers called `name`."""
    return registry_of(m).starts[name]
