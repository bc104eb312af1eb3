"""Modules in transit: which copy in a worker belongs to which module of the caller.

A module that is pickled for a worker, and is not part of another, takes its origin along. It is
recognized by that where it arrives, and so are results that contain it. Forked workers have modules
that were never pickled (`inherited_modules`). Workers and pickles name functions of this file, so
it stays light, and they keep their signatures.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from pytest_gradguard.runtime.kernel import checks, probes
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.faults import attempt, freed
from pytest_gradguard.runtime.kernel.state import dropped_at_end


class Copy:
    """A module that came to this process with a task.

    Attributes:
        token: the call that it came with.
        number: its number in the process of that call.
        looked_at, parameters: the probes' records of it as it arrived.
        left: the codes of the checks that have reported state which it keeps here.
    """

    def __init__(self, token: int, number: int, module: weakref.ref[Any]) -> None:
        self.token = token
        self.number = number
        self.looked_at: Any = None
        self.parameters: Any = None
        self.left: set[str] = set()
        self._module = module

    @property
    def module(self) -> Any:
        """The module, or None if it no longer exists."""
        return self._module()


_copies: dict[int, Copy] = dropped_at_end({})
"""The copies by the module's id."""


def shipped(
    token: int, number: int, reduction: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The `reduction` of a module on its way to a worker of a call, with its origin."""
    rebuild, arguments, *rest = reduction
    return (arrived, (os.getpid(), token, number, rebuild, arguments), *rest)


def arrived(
    origin: int, token: int, number: int, rebuild: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Rebuild a module in a worker; called by unpickling, before its state is set."""
    module = rebuild(*arguments)
    if origin != os.getpid():
        attempt(know, token, number, module)
    elif type(module).__weakrefoffset__:
        attempt(_passing.__setitem__, module, (token, number))
    return module


_passing: ByIdentity[tuple[int, int]] = dropped_at_end(ByIdentity())
"""Modules that have not left the process of their call: a scheduler there sends them on."""


def passed_on(module: Any, reduction: Any) -> Any:
    """The `reduction` of an unwatched module, with its origin if it is sent on."""
    named = _passing.get(module)
    if named is None or not isinstance(reduction, tuple):
        return reduction
    frame: Any = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is not None and frame.f_globals.get("__name__") == "distributed.protocol.pickle":
            return shipped(*named, reduction)
        frame = None if frame is None else frame.f_back
    return reduction


_FRAMES = 5
"""How many frames are searched for the pickler of a module."""


def know(token: int, number: int, module: Any) -> None:
    """Record `module`, which has come to this process, with its origin."""
    if not type(module).__weakrefoffset__:
        return  # the class creates another object in its place
    known = _copies.get(id(module))
    if known is None or known.module is not module:
        reference = weakref.ref(module, freed(_forget, id(module)))
        _copies[id(module)] = Copy(token, number, reference)
        probes.activate("gg111")
        probes.activate("gg114")
    else:
        known.token = token  # an earlier call may be forgotten


def _forget(identity: int) -> None:
    known = _copies.get(identity)
    if known is not None and known.module is None:
        del _copies[identity]


def copies() -> Iterator[tuple[Copy, Any]]:
    """The copies that came to this process with tasks, and their modules, kept alive that long.

    Modules that another thread is unpickling, and that have no state yet, are left out.
    """
    for copy in list(_copies.values()):
        module = copy.module
        if module is not None and vars(module):
            yield copy, module


def copy_that_is(module: Any) -> Copy | None:
    """The copy that came to this process as `module`; None if it was created here."""
    known = _copies.get(id(module))
    return known if known is not None and known.module is module else None


def origin_of(module: Any) -> tuple[Copy, str] | None:
    """The copy that `module` is, or is a part of, and the path to that part."""
    known = copy_that_is(module)
    if known is not None:
        return known, ""
    for copy, whole in copies():
        for name, part in _parts(whole):
            if part is module:
                return copy, name
    return None


def _parts(module: Any) -> Iterator[tuple[str, Any]]:
    named: Iterator[tuple[str, Any]] = module.named_modules()
    return named


def returned(
    token: int, copy: Copy, part: str, task: Any, reduction: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The `reduction` of a module on its way back to the process that it came from.

    Args:
        token: the call whose result it is in.
        copy: the copy that it is, or is a part of.
        part: the path to that part.
        task: the function that returns it.
        reduction: how it is pickled.
    """
    rebuild, arguments, *rest = reduction
    about = (copy.token, copy.number, part, task)
    return (came_back, (token, about, rebuild, arguments), *rest)


def came_back(
    token: int, about: tuple[Any, ...], rebuild: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Rebuild a module in the process that it came from; called by unpickling."""
    module = rebuild(*arguments)
    attempt(_note, token, about, module)
    return module


def _note(*came: Any) -> None:
    _back.modules.append(came)


class _Back(threading.local):
    """Modules that have come back in this thread, in results being unpickled."""

    def __init__(self) -> None:
        self.modules: list[tuple[Any, ...]] = []


_back = _Back()


def settle() -> None:
    """Handle returned modules: the results are unpickled, so these are complete."""
    if not _back.modules:
        return
    came, _back.modules = _back.modules, []
    for token, about, module in came:
        if vars(module):  # otherwise its copy could not be unpickled
            came_home(token, about, module)


def came_home(token: int, about: tuple[int, int, str, Any], module: Any) -> None:
    """Notify the checks of a copy that has come back to the process that it was sent from.

    Args:
        token: the call whose result it is in.
        about: the call that it was sent with, its number there, the path in that module to the
            returned part, and the function that returned it.
        module: the returned module.
    """
    from pytest_gradguard.runtime.kernel import calls

    origin, number, part, task = about
    call, sent_by = calls.by_token(token), calls.by_token(origin)
    whole = None if sent_by is None else sent_by.module_of(number)
    sent = None if whole is None else dict(_parts(whole)).get(part)
    if call is not None and sent is not None:
        for _, handle in checks.handlers("on_module_returned"):
            handle(call, sent, task, module)
