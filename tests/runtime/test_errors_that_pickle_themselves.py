"""What was seen in a worker comes back with the error of a task, however its class is pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from pytest_gradguard.runtime.kernel import worker


class Plain(Exception):
    pass


class ByArguments(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        return ByArguments, (self.code,)


class WithState(ByArguments):
    def __reduce__(self) -> Any:
        return ByArguments, (self.code,), self.__dict__


def rebuilt(attributes: dict[str, Any]) -> ByArguments:
    error = ByArguments(attributes["code"])
    error.__dict__.update(attributes)
    return error


class ByAttributes(ByArguments):
    def __reduce__(self) -> Any:
        return rebuilt, (self.__dict__,)


ERRORS = [
    Plain("x"),
    OSError(2, "no"),
    KeyError("x"),
    ByArguments(3),
    WithState(3),
    ByAttributes(3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_heard_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    error = copy.copy(error)
    monkeypatch.setattr(worker, "receive", lambda *said: heard.append(said))
    monkeypatch.setattr(worker.receive, "__module__", worker.__name__)
    monkeypatch.setattr(worker.receive, "__qualname__", "receive")
    worker.send_with(error, 7, [("cuda", "seen")])
    arrived = pickle.loads(pickle.dumps(error))
    assert heard == [(7, None, [], [("cuda", "seen")])]
    assert str(arrived) == str(error)
    assert "__reduce__" not in arrived.__dict__
    assert getattr(arrived, "code", None) == getattr(error, "code", None)
