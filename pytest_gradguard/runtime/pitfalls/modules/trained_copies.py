"""GG114: shipped modules that an optimizer in a worker has trained, and that nothing returns.

The first module that arrives activates it; it then watches the steps of optimizers. A task that
saves or pickles a module, reads its state, or writes a file that is large enough, may have saved
it: that is no loss.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel import probes, shipped_modules
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.shipped_modules import Copy
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.kept import backwards, returned
from pytest_gradguard.runtime.pitfalls.modules import files, gg114, kept_buffers
from pytest_gradguard.runtime.pitfalls.modules.buffers import parameters_of, same
from pytest_gradguard.runtime.pitfalls.modules.gg111 import KeptBuffers

_stepped: set[int] = dropped_at_end(set())
"""The ids of the parameters that an optimizer has stepped in this batch."""


def begin(asked: None, process: bool) -> After | None:
    """Record the modules that are here, before the tasks of a batch run."""
    seen = False
    for copy, module in shipped_modules.copies():
        if copy.parameters is None:
            copy.parameters = parameters_of(module)
        seen = seen or bool(copy.parameters)
    if not seen:
        probes.deactivate("gg114")
        return None
    _stepped.clear()
    steps.after.subscribe(_steps)
    files.watch()
    return _after


def _steps(optimizer: Any) -> None:
    stepped = set(map(id, steps.parameters_of(optimizer)))
    if not stepped <= _stepped:
        _stepped.update(stepped)
        probes.note_change()


def _after(items: Any, results: Any, error: BaseException | None) -> list[KeptBuffers] | None:
    """Return the modules here that the tasks `items` have trained, and left here."""
    files.unwatch()
    steps.after.unsubscribe(_steps)
    found = _trained_by(items, results) if error is None else []
    returned = functools.partial(_returns, results)
    found += kept_buffers.returned_later(gg114.CODE, items, found, returned)
    for copy, module in shipped_modules.copies():
        if copy.parameters is not None:
            copy.parameters = parameters_of(module)
    return found or None


def current_note(items: Any) -> list[KeptBuffers]:
    """Return the modules that this process has trained so far and sent to no other."""
    return _trained_by(items, ())


def on_sent(item: Any) -> None:
    """Check whether an item sent to another process may hold trained parameters."""
    if any(_may_return(trained, [item]) for _, _, trained in _trained()):
        files.note_saved()


def _trained_by(items: Any, results: Any) -> list[KeptBuffers]:
    """The trained modules that came with the tasks `items` and that `results` do not return."""
    found = []
    for copy, module, trained in _trained():
        size = sum(one.numel() for one in trained.values())
        copies = backwards.known(items)
        if not (
            files.may_hold(size)
            or any(map(tensors.in_shared_memory, trained.values()))
            or (copies is not None and copies.may_be_in_shared_memory(size))
            or _may_return(trained, results)
        ):
            note = kept_buffers.note(copy, module, list(trained), copy.parameters, items)
            found.append(note)
    return found


def _trained() -> Iterator[tuple[Copy, Any, dict[str, Any]]]:
    """The trained modules here: their record and the stepped parameters."""
    for copy, module in shipped_modules.copies():
        now = parameters_of(module)
        if copy.parameters and not all(
            same(one, now.get(name)) for name, one in copy.parameters.items()
        ):
            named = module.named_parameters()
            trained = {name: one for name, one in named if id(one) in _stepped}
            if trained:
                yield copy, module, trained


def _returns(results: Any, module: Any) -> bool:
    """Whether `results`, or files that the tasks saved, may hold the parameters of `module`."""
    named = dict(module.named_parameters())
    size = sum(one.numel() for one in named.values())
    return files.may_hold(size) or _may_return(named, results)


def _may_return(trained: dict[str, Any], results: Any) -> bool:
    """Whether the results may hold the `trained` parameters, or values derived from them."""
    held = returned.Held(results)
    sizes = [one.numel() for one in trained.values()]
    if held.unknown or held.may_hold_text_of(sum(sizes)) or held.is_long_vector(sizes):
        return True
    several = [one for one in trained.values() if one.numel() > 1]
    return any(held.fitting(one) for one in several) or held.holds_any(list(trained.values()))


def on_note(call: Any, note: list[KeptBuffers]) -> None:
    """Record, in the parent, the report of a worker of `call`."""
    from pytest_gradguard.runtime.pitfalls.modules import worker_buffers

    worker_buffers.remember(call, note, gg114.Evidence)
