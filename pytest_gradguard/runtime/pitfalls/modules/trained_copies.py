"""GG114: which modules that came with tasks an optimizer there has trained, and nothing returns.

It is roused by the first module that arrives, and hears of the steps of optimizers. A task that
saves or pickles a module, or reads its state, may leave it anywhere: that is no loss.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import modules as torch_modules
from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel import probes, shipped_modules, watching
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.pitfalls.kept import returned
from pytest_gradguard.runtime.pitfalls.modules import kept_buffers
from pytest_gradguard.runtime.pitfalls.modules.buffers import parameters_of, same
from pytest_gradguard.runtime.pitfalls.modules.gg111 import KeptBuffers

_stepped: set[int] = set()
"""The ids of the parameters that an optimizer has stepped in the tasks of this batch."""
_saved: list[bool] = []
"""Whether the tasks have saved something, or copied a module."""


def begin(asked: None, process: bool) -> After | None:
    """Look at the modules that are here, before the tasks of a batch run."""
    seen = False
    for copy, module in shipped_modules.copies():
        if copy.parameters is None:
            copy.parameters = parameters_of(module)
        seen = seen or bool(copy.parameters)
    if not seen:
        probes.rest("gg114")
        return None
    _stepped.clear()
    _saved.clear()
    steps.after.subscribe(_steps)
    _patches.apply()
    if _copied not in torch_modules.copied:
        torch_modules.copied.append(_copied)
    return _after


def _steps(optimizer: Any) -> None:
    _stepped.update(map(id, steps.parameters_of(optimizer)))


def _saves(*args: Any, **kwargs: Any) -> None:
    _saved[:] = [True]


def _copied(module: Any) -> None:
    _saves()


_patches = Patches(
    [
        observe(torch, "save", before=_saves),
        observe(torch.nn.Module, "state_dict", before=_saves),
    ]
)


def _after(items: Any, results: Any, error: BaseException | None) -> list[KeptBuffers] | None:
    """Which modules that are here the tasks `items` have trained, and left here."""
    saved, stepped = bool(_saved), set(_stepped)
    _rest()
    found = []
    for copy, module in shipped_modules.copies():
        before, now = copy.parameters, parameters_of(module)
        if not before or all(same(one, now.get(name)) for name, one in before.items()):
            continue
        copy.parameters = now
        trained = {name: one for name, one in module.named_parameters() if id(one) in stepped}
        shared = any(map(tensors.in_shared_memory, trained.values()))
        if trained and error is None and not (saved or shared or _may_return(trained, results)):
            found.append(kept_buffers.note(copy, module, list(trained), items))
    return found or None


def _may_return(trained: dict[str, Any], results: Any) -> bool:
    """Whether something that `trained` has become, or that was made of it, may go back."""
    held = returned.Held(results)
    sizes = [one.numel() for one in trained.values()]
    if held.unknown or held.may_hold_text_of(sum(sizes)) or held.is_long_vector(sizes):
        return True
    several = [one for one in trained.values() if one.numel() > 1]
    return any(held.fitting(one) for one in several) or held.holds_any(list(trained.values()))


def heard(call: Any, note: list[KeptBuffers]) -> None:
    """Keep, in the parent, what a worker of `call` has told."""
    from pytest_gradguard.runtime.pitfalls.modules import gg114, worker_buffers

    worker_buffers.remember(call, note, gg114.Evidence)


def _rest() -> None:
    _patches.undo()
    steps.after.unsubscribe(_steps)
    if _copied in torch_modules.copied:
        torch_modules.copied.remove(_copied)


watching.at_end(_rest)
