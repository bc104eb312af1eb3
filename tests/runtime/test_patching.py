"""Patches on one name that are undone in any order leave the original."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch, on_class


class Base:
    def inherited(self) -> str:
        return "original"


class Owner(Base):
    def own(self) -> str:
        return "original"


def wrapping(text: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def method(self: Any) -> str:
            return f"{text} {original(self)}"

        return method

    return wrap


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_of_undoing_ends_with_the_original(order: tuple[int, ...]) -> None:
    original = vars(Owner)["own"]
    patches = [Patch(Owner, "own", wrapping(str(number))) for number in range(3)]
    for patch in patches:
        patch.apply()
    assert Owner().own() == "2 1 0 original"
    for number in order:
        patches[number].undo()
    assert vars(Owner)["own"] is original


def test_an_inherited_attribute_is_inherited_again() -> None:
    patch = Patch(Owner, "inherited", wrapping("patched"), inherited=True)
    patch.apply()
    assert Owner().inherited() == "patched original"
    assert Base().inherited() == "original"
    patch.undo()
    assert "inherited" not in vars(Owner)


def test_an_attribute_of_the_base_class_is_refused_where_it_must_be_own() -> None:
    with pytest.raises(AttributeError, match="inherited"):
        Patch(Owner, "inherited", wrapping("patched")).apply()


class Kinds(dict[str, int]):
    """Methods of a class by every kind of descriptor; `fromkeys` is written in C."""

    in_c = vars(dict)["fromkeys"]

    @classmethod
    def in_python(cls, keys: str, value: int) -> dict[str, int]:
        return cls((key, value) for key in keys)

    @staticmethod
    def __new__(cls: type, keys: str = "", value: int = 0) -> Any:
        return dict.__new__(cls)


class Inheriting(Kinds):
    pass


@pytest.mark.parametrize("name", ["in_c", "in_python"])
def test_a_method_of_a_class_is_wrapped_whatever_its_kind(name: str) -> None:
    def wrap(original: Any) -> Any:
        def method(cls: type, *args: Any) -> Any:
            return on_class(original, cls)(*args), "patched"

        return classmethod(method)

    original = vars(Kinds)[name]
    patch = Patch(Kinds, name, wrap)
    patch.apply()
    made, patched = getattr(Inheriting, name)("ab", 1)
    assert (type(made), made, patched) == (Inheriting, {"a": 1, "b": 1}, "patched")
    patch.undo()
    assert vars(Kinds)[name] is original


def test_a_static_method_is_called_as_it_is() -> None:
    assert on_class(vars(Kinds)["__new__"], Inheriting)(Inheriting) == {}


def test_late_patches_are_made_once_and_only_when_they_can_be() -> None:
    class Owner:
        def name(self) -> str:
            return "theirs"

    loaded: list[type] = []
    asked = []

    def make() -> list[Patch]:
        asked.append(len(loaded))
        return [Patch(owner, "name", lambda _: lambda self: "ours") for owner in loaded]

    late = LatePatches(make)
    late.undo()
    late.apply()
    assert Owner().name() == "theirs"
    loaded.append(Owner)
    late.apply()
    late.apply()
    assert Owner().name() == "ours"
    late.undo()
    assert Owner().name() == "theirs"
    late.apply()
    assert Owner().name() == "ours"
    late.undo()
    assert asked == [0, 1]
