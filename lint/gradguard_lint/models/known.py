"""The models' access to the rows."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.domain.values import Value
from gradguard_lint.engine.imports import stub_value
from gradguard_lint.engine.machine import Machine
from gradguard_lint.models.rows import Registry
from gradguard_lint.models.stub_files import load, parsed


class Known:
    """The part of the models with the registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def stub(self, m: Machine, name: str) -> Value | None:
        """The definition of a library's full name in a stub; None if there is none."""
        for full in dict.fromkeys((name, self.registry.canonical(name))):
            module, _, own = full.rpartition(".")
            own_stub = self.registry.own_stubs.get(full) or self.registry.own_stubs.get(module)
            path = self.registry.stubs.get(module)
            if own_stub is not None and (found := stub_value(m, parsed(own_stub), own)) is not None:
                return found
            if path is not None and (found := stub_value(m, load(path, module), own)) is not None:
                return found
        return None


def registry_of(m: Machine) -> Registry:
    """The registry of this run."""
    assert isinstance(m.models, Known)
    return m.models.registry


def start_called(m: Machine, name: str) -> Start:
    """The start called `name`."""
    return registry_of(m).starts[name]
