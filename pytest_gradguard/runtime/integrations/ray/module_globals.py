"""GG109 in Ray: the module globals that tasks and actors read.

Ray pickles a function or class once, as it is first used. The parent's values travel with it, and
each of its tasks is compared with them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from pytest_gradguard.runtime import probes
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.checks import gg109

_NAME = gg109.PROBES[0].name
_asked: dict[str, Mapping[str, Any]] = {}
"""In a worker: what was asked of the exported functions and classes, by their names."""


def ask(call: Call, exported: Any) -> Mapping[str, Any]:
    """What the worker compares for a function or class that `call` exports."""
    if all(probe.name != _NAME for probe, _ in call.asking):
        return {}
    functions = [exported]
    if issubclass(type(exported), type):
        members = (member for kind in exported.__mro__ for member in vars(kind).values())
        functions = [one for one in members if type(one) is types.FunctionType]
    asked = gg109.ship(call, [(function, (), {}) for function in functions])
    return {} if asked is None else {_NAME: asked}


def arrive(exported: Any, asked: Mapping[str, Any]) -> None:
    """Take what was asked, in a worker that has just imported what `exported` names."""
    _asked[exported.__qualname__] = asked
    probes.begin(asked, process=True)  # the check remembers the values of a fresh import


def asked_for(function: Any) -> Mapping[str, Any]:
    """What was asked of a task's function; of a method, what was asked of its class."""
    owner = function.__self__ if issubclass(type(function), types.MethodType) else function
    return _asked.get(getattr(owner, "__qualname__", ""), {})
