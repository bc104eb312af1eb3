"""Functions of others that are observed do what they do without it."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import pytest

from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.kernel import faults
from pytest_gradguard.runtime.kernel.observing import caller, observe


class Shop:
    def sell(self, what: str, *, price: int = 1) -> str:
        if what == "nothing":
            raise LookupError(what)
        return f"{what} for {price}"


@pytest.fixture
def seen() -> list[Any]:
    return []


def test_observers_see_what_goes_in_and_comes_out(seen: list[Any]) -> None:
    def before(shop: Shop, what: str, **given: Any) -> int | None:
        seen.append((what, given, caller().f_code.co_name))
        return None if what == "air" else 7

    def after(begun: int, result: str, shop: Shop, what: str, **given: Any) -> None:
        seen.append((begun, result, what, given, caller().f_code.co_name))

    patch = observe(Shop, "sell", before=before, after=after)
    original = vars(Shop)["sell"]
    patch.apply()
    here = "test_observers_see_what_goes_in_and_comes_out"
    try:
        assert Shop.sell.__name__ == "sell"
        assert Shop().sell("tea", price=2) == "tea for 2"
        assert seen == [("tea", {"price": 2}, here), (7, "tea for 2", "tea", {"price": 2}, here)]
        del seen[:]
        assert Shop().sell("air") == "air for 1"
        assert seen == [("air", {}, here)]
    finally:
        patch.undo()
    assert vars(Shop)["sell"] is original


def test_other_arguments_go_in_and_another_result_comes_out(seen: list[Any]) -> None:
    def before(shop: Shop, what: str, **given: Any) -> str | None:
        return None if what == "air" else "green"

    def arguments(kind: str, shop: Shop, what: str, **given: Any) -> Any:
        seen.append((what, given, caller().f_code.co_name))
        return None if what == "milk" else ((shop, f"{kind} {what}"), {**given, "price": 3})

    def result(kind: str, outcome: str, shop: Shop, what: str, **given: Any) -> str | None:
        seen.append((outcome, what, given))
        return None if what == "milk" else outcome.upper()

    patch = observe(Shop, "sell", before=before, arguments=arguments, result=result)
    patch.apply()
    here = "test_other_arguments_go_in_and_another_result_comes_out"
    try:
        assert Shop().sell("tea", price=2) == "GREEN TEA FOR 3"
        assert seen == [
            ("tea", {"price": 2}, here),
            ("green tea for 3", "green tea", {"price": 3}),
        ]
        del seen[:]
        assert Shop().sell("milk") == "milk for 1"
        assert seen == [("milk", {}, here), ("milk for 1", "milk", {})]
        del seen[:]
        assert Shop().sell("air") == "air for 1"
        assert not seen
    finally:
        patch.undo()


def test_an_error_comes_without_a_frame_of_ours(seen: list[Any]) -> None:
    patch = observe(
        Shop,
        "sell",
        arguments=lambda shop, what: ((shop, "nothing"), {}),
        result=seen.append,
        failed=lambda *given: seen.append(given),
    )
    patch.apply()
    shop = Shop()
    try:
        with pytest.raises(LookupError) as raised:
            shop.sell("tea")
    finally:
        patch.undo()
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][1:] == ["sell"]
    assert seen == [(raised.value, shop, "nothing")]


@pytest.mark.parametrize("when", ["before", "arguments", "after", "result"])
def test_a_fault_of_an_observer_is_one_warning(
    when: str, monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(faults, "_reported", False)
    observers: Any = {when: fails}
    if when == "before":
        observers["after"] = lambda *given: seen.append(given)
    patch = observe(Shop, "sell", **observers)
    patch.apply()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert Shop().sell("tea") == "tea for 1"
            assert Shop().sell("milk") == "milk for 1"
    finally:
        patch.undo()
    assert [one.category for one in caught] == [GradGuardWarning]
    assert "planted" in str(caught[0].message)
    assert not seen


def test_a_finding_reaches_the_caller() -> None:
    def finds(result: str, *_: Any) -> None:
        raise GradGuardError([])

    patch = observe(Shop, "sell", after=finds)
    patch.apply()
    try:
        with pytest.raises(GradGuardError) as raised:
            Shop().sell("tea")
    finally:
        patch.undo()
    assert len(traceback.extract_tb(raised.tb)) == 1


def test_arguments_that_nobody_takes_are_the_programs_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "_reported", False)
    patch = observe(Shop, "sell", before=lambda shop, what: None)
    patch.apply()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TypeError, match="missing 1 required positional argument: 'what'"):
                Shop().sell()  # type: ignore[call-arg]
        with pytest.warns(GradGuardWarning, match="itself failed"):
            assert Shop().sell("tea", price=2) == "tea for 2"  # the observer is wrong here
    finally:
        patch.undo()
