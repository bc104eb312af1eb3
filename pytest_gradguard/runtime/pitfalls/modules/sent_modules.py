"""GG112: modules that a process of the program sends back, recognized by their values.

The program pickles them itself, through a queue, a connection or into a file; the pickle is
unchanged. The process reports what it pickles, and the parent recognizes it as it is unpickled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import modules as torch_modules
from pytest_gradguard.runtime.kernel import calls, frameworks, shipped_modules
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import reporting
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.modules import replaced_modules
from pytest_gradguard.runtime.pitfalls.modules.buffers import parameters_of, text_of


class SentModule(NamedTuple):
    """A copy of a module that a process has pickled, in plain values.

    Attributes:
        task: the function that the process runs.
        token, number: the call that the module came with, and its number there.
        kind: its class.
        values: the digests of some parameters, by name.
    """

    task: Task
    token: int
    number: int
    kind: str
    values: dict[str, str]


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _values(module: Any) -> dict[str, str]:
    return {name: text_of(one) for name, one in parameters_of(module).items()}


# -- in the process --------------------------------------------------------------------------------


def watch(function: Any, tell: Callable[[SentModule], object]) -> None:
    """Report, from now on, which of its copies this process pickles.

    Args:
        function: the process's function.
        tell: called with each of them.
    """

    def copied(module: Any) -> None:
        copy = shipped_modules.copy_that_is(module)
        if copy is not None:
            about = (copy.token, copy.number, _kind(module), _values(module))
            tell(SentModule(task_of(function), *about))

    frameworks.watch_reductions()
    torch_modules.copied.subscribe(copied, lasting=True)


# -- in the parent ---------------------------------------------------------------------------------

_sent: deque[tuple[Call, SentModule]] = dropped_at_end(deque(maxlen=64))


def expect() -> None:
    """Check, from now on, the modules that the program unpickles."""
    _patches.apply()


def on_note(call: Call, note: SentModule) -> None:
    """Record what a process that `call` has started has pickled, in case it arrives here."""
    _sent.append((call, note))


def _built(result: Any, module: Any, *args: Any) -> None:
    if caller().f_globals.get("__name__") == "copy":
        return
    reporting.receive()
    about = [(call, one) for call, one in _sent if one.kind == _kind(module)]
    values = _values(module) if about else {}
    for call, one in about:
        sent_by = calls.by_token(one.token)
        original = None if sent_by is None else sent_by.module_of(one.number)
        if original is not None and values and one.values == values:
            replaced_modules.remember(call, original, one.task, module)
            return


_patches = Patches([observe(torch.nn.Module, "__setstate__", after=_built)])
