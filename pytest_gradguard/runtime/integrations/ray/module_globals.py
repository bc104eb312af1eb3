"""GG109 in Ray: the module globals that tasks and actors read.

Ray pickles a function or class once, as it is first used. The parent's values travel with it, and
each of its tasks is compared with them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from pytest_gradguard.runtime.kernel import used_globals
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.pitfalls.imports import gg109

_NAME = gg109.PROBES[0].name
_asked: dict[tuple[str, str], Mapping[str, Any]] = {}
"""In a worker: what was asked of the functions, by the names of exports and their own."""


def ask(call: Call, exported: Any) -> Mapping[str, gg109.Asked]:
    """What the worker compares for the functions that `call` exports, by their names."""
    if all(probe.name != _NAME for probe, _ in call.asking):
        return {}
    functions: dict[str, list[Any]] = {}
    if issubclass(type(exported), type):
        actor = getattr(exported, "__ray_actor_class__", exported)  # without Ray's wrappers
        for kind in reversed(actor.__mro__):
            for name, method in vars(kind).items():
                if type(method) is types.FunctionType:
                    functions[name] = [method, *used_globals.called_on(actor, method, set())]
    else:
        functions[exported.__name__] = [exported]
    asked = {
        name: gg109.ship(call, [(one, (), {}) for one in group])
        for name, group in functions.items()
    }
    return {name: answer for name, answer in asked.items() if answer is not None}


def arrive(exported: Any, asked: Mapping[str, gg109.Asked]) -> None:
    """Take what was asked, in a worker that has just imported what `exported` names."""
    for name, question in asked.items():
        _asked[exported.__qualname__, name] = {_NAME: question}
        gg109.begin(question, process=True)  # it remembers the values of a fresh import


def asked_for(function: Any) -> Mapping[str, Any]:
    """The questions asked of a task's function."""
    owner = function.__self__ if issubclass(type(function), types.MethodType) else function
    names = (getattr(owner, "__qualname__", ""), getattr(function, "__name__", ""))
    return _asked.get(names, {})
