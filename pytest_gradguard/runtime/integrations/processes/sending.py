"""What a process sends to others: by queues and connections, and to managers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches


def sends(package: str, take: Callable[[Any], None]) -> Patches:
    """Have `take` called with what is sent to other processes by what `package` has for that."""
    connection: Any = import_module(f"{package}.connection")
    queues: Any = import_module(f"{package}.queues")

    def look(sender: Any, item: Any, *args: Any, **kwargs: Any) -> None:
        module = caller().f_globals.get("__name__", "")
        if module == f"{package}.managers":  # what a proxy is asked to do, with its arguments
            take(item[2:] if type(item) is tuple else item)
        elif not module.startswith(f"{package}."):  # a queue sends what it was given
            take(item)

    base = connection.Connection.__base__
    places = [
        (queues.Queue, "put"),
        (queues.JoinableQueue, "put"),
        (queues.SimpleQueue, "put"),
        (base, "send"),
        (base, "send_bytes"),
    ]
    return Patches([observe(owner, name, before=look, inherited=True) for owner, name in places])
