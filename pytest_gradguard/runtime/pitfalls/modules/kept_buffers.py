"""GG111: buffers of shipped modules that have changed and do not go back.

The first module that arrives activates it; it then checks the buffers of modules that have any. A
copy whose parameters changed, too, without going back is discarded as a whole: that is no loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import locate, probes, shipped_modules
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.shipped_modules import Copy
from pytest_gradguard.runtime.kernel.tasks import Task, parameter_of, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.kept import returned
from pytest_gradguard.runtime.pitfalls.modules import files, gg111
from pytest_gradguard.runtime.pitfalls.modules.buffers import (
    few,
    kept_by,
    parameters_of,
    same,
    state_of,
    text_of,
)
from pytest_gradguard.runtime.pitfalls.modules.gg111 import KeptBuffers


class _Seen(NamedTuple):
    """The state of a module before a task ran.

    Attributes:
        buffers, parameters: states that show whether these have changed since.
        shared: the buffers in memory that other processes may read.
        returned: changed buffers may have gone back.
        trained_returned: changed parameters have gone back.
    """

    buffers: dict[str, Any]
    parameters: dict[str, Any]
    shared: dict[str, Any]
    returned: bool = False
    trained_returned: bool = False


def begin(asked: None, process: bool) -> After | None:
    """Record the modules that are here, before the tasks of a batch run."""
    seen = False
    for copy, module in shipped_modules.copies():
        if copy.looked_at is None:
            copy.looked_at = _see(module)
        seen = seen or bool(copy.looked_at.buffers)
    if not seen:
        probes.deactivate("gg111")
        return None
    return _after


def _after(items: Any, results: Any, error: BaseException | None) -> list[KeptBuffers] | None:
    """Return the buffers of modules here that the tasks `items` have changed."""
    if error is None:
        _look_at(results)
    found = _left_by(items) if error is None else []
    found += returned_later(gg111.CODE, items, found, functools.partial(_returns, results))
    for copy, module, _, _ in _changed_copies():
        copy.looked_at = _see(module)
    return found or None


def _returns(results: Any, module: Any) -> bool:
    """Whether `results` may hold the buffers of `module`."""
    values = [buffer for _, _, buffer in kept_by(module)]
    return returned.Held(results).may_hold(values, list(module.parameters()), len(results))


def returned_later(
    code: str, items: Any, found: list[KeptBuffers], returns: Callable[[Any], bool]
) -> list[KeptBuffers]:
    """What later tasks, such as another method of an actor, return of what earlier ones left.

    Args:
        code: the check.
        items: the later tasks.
        found: what they leave themselves.
        returns: whether they return what a module holds.
    """
    back = []
    new = {(one.token, one.number) for one in found}
    for copy, module in shipped_modules.copies():
        if (copy.token, copy.number) in new:
            copy.left.add(code)
        elif code in copy.left and returns(module):
            copy.left.discard(code)
            back.append(note(copy, module, [], {}, items))
    return back


def current_note(items: Any) -> list[KeptBuffers]:
    """Return the buffers of modules here that have changed and went to no other process."""
    left = _left_by(items)
    size = sum(
        buffer.numel() for _, _, _, changed in _changed_copies() for buffer in changed.values()
    )
    return [] if left and files.may_hold(size) else left


def _left_by(items: Any) -> list[KeptBuffers]:
    found = []
    for copy, module, seen, changed in _changed_copies():
        if not seen.returned and (seen.trained_returned or not _is_trained(module, seen)):
            found.append(note(copy, module, list(changed), seen.buffers, items))
    return found


def on_sent(item: Any) -> None:
    """Check whether an item sent to another process may hold changed buffers."""
    _look_at([item])


def _look_at(results: Any) -> None:
    held = None
    for copy, module, seen, changed in _changed_copies():
        held = held or returned.Held(results)
        parameters = list(module.parameters())
        if held.may_hold(list(changed.values()), parameters, len(results)):
            seen = seen._replace(returned=True)
        trained = [one for one in parameters if one.requires_grad]
        if _is_trained(module, seen) and held.holds_any(trained, single=False):
            seen = seen._replace(trained_returned=True)
        copy.looked_at = seen


def _changed_copies() -> Iterator[tuple[Copy, Any, _Seen, dict[str, Any]]]:
    """The modules here with changed buffers."""
    for copy, module in shipped_modules.copies():
        seen: _Seen | None = copy.looked_at
        if seen is not None and seen.buffers:
            changed = _changed(module, seen)
            if changed:
                yield copy, module, seen, changed


# -- what a module holds -------------------------------------------------------------------------


def _see(module: Any) -> _Seen:
    buffers, shared = {}, {}
    for name, owner, buffer in kept_by(module):
        buffers[name] = state_of(owner, buffer)
        if tensors.in_shared_memory(buffer):
            shared[name] = buffer
    return _Seen(buffers, parameters_of(module) if buffers else {}, shared)


def _changed(module: Any, seen: _Seen) -> dict[str, Any]:
    """The buffers whose values have changed, unless in shared memory."""
    return {
        name: buffer
        for name, owner, buffer in kept_by(module)
        if not same(seen.buffers.get(name), state_of(owner, buffer))
        and seen.shared.get(name) is not buffer
    }


def _is_trained(module: Any, seen: _Seen) -> bool:
    """Whether its parameters have changed, too: the whole copy is then discarded."""
    now = parameters_of(module)
    return not all(same(state, now.get(name)) for name, state in seen.parameters.items())


# -- the notes -------------------------------------------------------------------------------------


def note(
    copy: Copy, module: Any, names: list[str], before: Mapping[str, Any], items: Any
) -> KeptBuffers:
    """What the tasks `items` have changed in their copy of a module, and left here."""
    paths = locate.find(roots_of(items), lambda item: item is module)
    index, _, path = paths.get(id(module), "0|").partition("|")
    function = items[int(index)][0]
    path = path.lstrip(".")
    task: Task = task_of(function)
    parameter = parameter_of(function, path)
    values = {name: text_of(before[name]) for name in names if name in before}
    return KeptBuffers(task, copy.token, copy.number, path, parameter, names, few(values))


def on_note(call: Any, note: list[KeptBuffers]) -> None:
    """Record, in the parent, the report of a worker of `call`."""
    from pytest_gradguard.runtime.pitfalls.modules import worker_buffers

    worker_buffers.remember(call, note, gg111.Evidence)
