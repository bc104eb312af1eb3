"""GG111: which buffers of modules that came with tasks have changed, and do not go back.

It is roused by the first module that arrives, and looks at the buffers of those that have any. A
copy whose parameters changed, too, without going back is thrown away as a whole: that is no loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import locate, probes, shipped_modules
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.shipped_modules import Copy
from pytest_gradguard.runtime.kernel.tasks import Task, parameter_of, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.kept import returned
from pytest_gradguard.runtime.pitfalls.modules.buffers import kept_by, parameters_of, same, state_of
from pytest_gradguard.runtime.pitfalls.modules.gg111 import KeptBuffers


class _Seen(NamedTuple):
    """A module as it was before a task ran.

    Attributes:
        buffers, parameters: what tells whether these have changed since.
        shared: the buffers in memory that other processes may read.
    """

    buffers: dict[str, Any]
    parameters: dict[str, Any]
    shared: dict[str, Any]


def begin(asked: None, process: bool) -> After | None:
    """Look at the modules that are here, before the tasks of a batch run."""
    seen = False
    for copy, module in shipped_modules.copies():
        if copy.looked_at is None:
            copy.looked_at = _see(module)
        seen = seen or bool(copy.looked_at.buffers)
    if not seen:
        probes.rest("gg111")
        return None
    return _after


def _after(items: Any, results: Any, error: BaseException | None) -> list[KeptBuffers] | None:
    """Which buffers of modules that are here have changed in the tasks `items`."""
    found = []
    for copy, module in shipped_modules.copies():
        seen: _Seen | None = copy.looked_at
        if seen is None or not seen.buffers:
            continue
        changed = _changed(module, seen)
        if not changed:
            continue
        copy.looked_at = _see(module)
        if error is None and not _go_back(module, changed, seen, results):
            found.append(note(copy, module, list(changed), items))
    return found or None


# -- what a module holds -------------------------------------------------------------------------


def _see(module: Any) -> _Seen:
    buffers, shared = {}, {}
    for name, owner, buffer in kept_by(module):
        buffers[name] = state_of(owner, buffer)
        if tensors.in_shared_memory(buffer):
            shared[name] = buffer
    return _Seen(buffers, parameters_of(module) if buffers else {}, shared)


def _changed(module: Any, seen: _Seen) -> dict[str, Any]:
    """The buffers that have other values than they had, which nobody else sees."""
    return {
        name: buffer
        for name, owner, buffer in kept_by(module)
        if not same(seen.buffers.get(name), state_of(owner, buffer))
        and seen.shared.get(name) is not buffer
    }


# -- what goes back ------------------------------------------------------------------------------


def _go_back(module: Any, changed: dict[str, Any], seen: _Seen, results: Any) -> bool:
    """Whether buffers that have changed may be among `results`, or nobody misses them."""
    parameters = list(module.parameters())
    held = returned.Held(results)
    if held.may_hold(list(changed.values()), parameters, len(results)):
        return True
    now = parameters_of(module)
    if all(same(state, now.get(name)) for name, state in seen.parameters.items()):
        return False
    trained = [one for one in parameters if one.requires_grad]
    return not held.holds_any(trained, single=False)


def note(copy: Copy, module: Any, names: list[str], items: Any) -> KeptBuffers:
    """What the tasks `items` have changed of their copy of a module, and left there."""
    paths = locate.find(roots_of(items), lambda item: item is module)
    index, _, path = paths.get(id(module), "0|").partition("|")
    function = items[int(index)][0]
    path = path.lstrip(".")
    task: Task = task_of(function)
    return KeptBuffers(task, copy.token, copy.number, path, parameter_of(function, path), names)


def heard(call: Any, note: list[KeptBuffers]) -> None:
    """Keep, in the parent, what a worker of `call` has told."""
    from pytest_gradguard.runtime.pitfalls.modules import gg111, worker_buffers

    worker_buffers.remember(call, note, gg111.Evidence)
