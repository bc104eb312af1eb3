"""Ray's tasks and actors, which run in their workers all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import inline
from pytest_gradguard.runtime.kernel.patching import Patch


def tasks(module: ModuleType) -> list[Patch]:
    """The patches of `ray.remote_function`."""
    return [Patch(module.RemoteFunction, "_remote", functools.partial(_refused, "a task of Ray"))]


def actors(module: ModuleType) -> list[Patch]:
    """The patches of `ray.actor`."""
    return [Patch(module.ActorMethod, "_remote", functools.partial(_refused, "an actor of Ray"))]


def _refused(what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _remote(*args: Any, **kwargs: Any) -> Any:
        inline.refuse(what)
        return original(*args, **kwargs)

    return _remote
