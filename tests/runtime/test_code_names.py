"""What code names, read off the bytecode of whichever Python runs this."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel.code_names import attributes_in, globals_in

module: Any = None
model: Any = None
other: Any = None
table: dict[str, Any] = {}
cached: Any = None


def fill(one: Any, values: Any) -> None:
    names = {name: float(value) for name, value in zip(one.state_dict(), values, strict=True)}
    one.load_state_dict(names)


def task(values: Any, x: Any) -> Any:
    global cached
    fill(model, values)
    module.holder.value = 3
    table["a"] = x
    cached = 1
    return [other.layer(x) for _ in values]


class Agent(dict):  # type: ignore[type-arg]
    def act(self, x: Any) -> Any:
        value = self.net(x)
        self.kept = value
        self.table[x] = value

        def inner() -> Any:
            return self.deep.er

        return [self.scored(one) for one in x], inner, f"{self.prefix}{x}"

    def handed_on(self) -> Any:
        return fill(self, 1)

    def by_super(self) -> Any:
        return super().copy()

    def rebound(self) -> Any:
        self = Agent()
        return self.net


def test_globals() -> None:
    found = globals_in(task.__code__)
    assert {("fill",), ("model",), ("other", "layer")} == set(found.loaded)
    assert {("module", "holder", "value"), ("table",), ("cached",)} == set(found.stored)
    assert found.handed == ((("fill",), ("model",)),)


def test_attributes_of_the_object() -> None:
    found = attributes_in(Agent.act.__code__)
    assert {("net",), ("deep", "er"), ("scored",), ("prefix",)} == set(found.loaded)
    assert {("kept",), ("table",)} == set(found.stored)


def test_attributes_of_an_argument() -> None:
    assert set(attributes_in(fill.__code__).loaded) == {("state_dict",), ("load_state_dict",)}


def test_object_as_a_whole() -> None:
    for method in (Agent.handed_on, Agent.by_super, Agent.rebound):
        assert () in attributes_in(method.__code__).loaded
