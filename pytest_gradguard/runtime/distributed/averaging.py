"""GG502: whether a DistributedDataParallel module averaged the gradients that an optimizer uses.

Each reducer notes when it saw the gradients of a backward: by that it is known to have run. Once it
has done so for a few steps, only the steps are looked at, until there is one without it.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_gradguard.runtime import callsite, collector, losses, watching
from pytest_gradguard.runtime.checks import gg502
from pytest_gradguard.runtime.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.frameworks.torch import engine, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.following import tensors_in
from pytest_gradguard.runtime.frameworks.torch.penalties import is_penalty
from pytest_gradguard.runtime.patching import Patch, Patches, on_class

_State = tuple[int, int] | None


class _Model:
    """What has happened to the gradients of one module since the last step over its parameters.

    Attributes:
        stats: gives when its reducer saw the gradient of each parameter; `seen` is what it gave
            last.
        averaged: its reducer ran.
        paused: `no_sync` was used.
        backward: the first backward that gave it gradients without the reducer, and what the
            program calls there; None: there was none.
    """

    def __init__(self, module: Any) -> None:
        weakref.finalize(module, attempt, _forget, self).atexit = False
        self._reference = weakref.ref(module)
        self.stats = module.reducer.get_backward_stats
        self.seen = self.stats()
        self.stepped()

    @property
    def module(self) -> Any:
        """The module; None where it is about to be no more."""
        return self._reference()

    def stepped(self) -> None:
        """An optimizer has used the gradients."""
        self.averaged = self.paused = False
        self.backward: tuple[callsite.Site | None, str] | None = None
        self.before: Mapping[int, _State] = _NOTHING
        self.heard = 0

    def look(self) -> bool:
        """See whether the reducer ran since the last step."""
        seen = self.stats()
        if seen != self.seen:
            self.seen = seen
            self.averaged = True
        return self.averaged

    def backward_ended(self, run: engine.Backward) -> None:
        """After a backward."""
        module = self.module
        if self.look() or module is None:
            return
        if module.static_graph and not any(self.seen):  # in its first backward it runs at the end
            self.averaged = any(map(_through_ddp, run.outputs))
        elif not module.require_backward_grad_sync:
            self.paused = True

    @property
    def settled(self) -> bool:
        """Whether nothing is to be said of the next step."""
        return self.averaged or self.paused


_NOTHING: Mapping[int, _State] = {}
_models: list[_Model] = []
_stepping: dict[int, tuple[int, list[_Model]]] = {}
"""By the id of an optimizer that lives: how many groups of parameters it had, and the modules that
share some with it."""
_SINK = "_DDPSinkBackward"
"""The node in which a module's reducer is told that a backward of its output begins."""
_CALM = 5
"""After how many steps in a row with averaged gradients no backward is looked at any more, at
first: a step without them was of no use if no backward had been looked at, and makes it more."""
_MORE = 4
_calm = 0
_needed = _CALM
_heard = 0
"""How many collectives have taken something that may be gradients."""


def _through_ddp(output: Any) -> bool:
    """Whether `output` was computed from what the forward of a DDP module has returned."""
    node = tensors.grad_fn(output)
    return node is not None and any(type(one).__name__ == _SINK for one in tensors.nodes(node))


def _parameters(module: Any) -> dict[int, Any]:
    """The parameters whose gradients `module` averages, by id."""
    every = () if module is None else module._module_parameters
    return {id(one): one for one in every if one.requires_grad}


def _state(parameter: Any) -> _State:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


# -- modules -------------------------------------------------------------------------------------


def _remember(module: Any) -> None:
    if not getattr(module, "_use_python_reducer", False):
        _models.append(_Model(module))
        _stepping.clear()
        steps.after.subscribe(_stepped)
        _collectives().apply()
        _listen()


def _forget(model: _Model) -> None:
    if model in _models:
        _models.remove(model)
    _stepping.clear()
    if not _models:
        steps.after.unsubscribe(_stepped)
        engine.unsubscribe(_backward)


def _listen() -> None:
    """Hear of each backward, for as long as there may be something to say."""
    global _calm
    _calm = 0
    engine.subscribe(_backward)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise
        try:
            _remember(self)
        except Exception as error:
            fault(error)

    return __init__


def _pausing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def no_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        for known in _models:
            if known.module is self:
                known.paused = True
        return original(self, *args, **kwargs)

    return no_sync


# -- what reduces gradients by hand --------------------------------------------------------------

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "allgather", "_allgather_base", "all_gather_single"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "allgather_coalesced"),
    *("gather", "broadcast", "alltoall", "alltoall_base", "all_to_all_single", "send", "recv"),
)
_FUNCTIONAL = "torch.distributed._functional_collectives"
_BATCH_NORM = "torch.nn.modules._functions"
"""The module of `SyncBatchNorm`, whose backward reduces sums of its own."""
_DEPTH = 6
"""How many frames above a collective are looked at for it."""


def _listening(original: Any) -> Callable[..., Any]:
    original = on_class(original, torch.distributed.ProcessGroup)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _heard
        try:
            if any(map(_may_be_gradient, tensors_in(args[:2]))) and not _is_batch_norm():
                _heard += 1
        except Exception as error:
            fault(error)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    return method


def _may_be_gradient(tensor: Any) -> bool:
    """Whether `tensor` may hold gradients: a single number that is no `.grad` is a loss."""
    if tensor.numel() > 1:
        return bool(tensor.is_floating_point())
    with torch._C.DisableTorchFunctionSubclass():
        place = tensor.untyped_storage().data_ptr()
        return any(
            one.grad is not None and one.grad.untyped_storage().data_ptr() == place
            for model in list(_models)
            for one in _parameters(model.module).values()
        )


def _is_batch_norm() -> bool:
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame.f_globals.get("__name__") == _BATCH_NORM:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _resolving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resolve(*args: Any, **kwargs: Any) -> Any:
        global _heard
        _heard += 1
        return original(*args, **kwargs)

    return resolve


# -- backward passes and steps -------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    open_ones = [model for model in _models if not model.averaged]
    if not open_ones:
        return None
    heard = _heard
    states: dict[int, _State] = {}
    if not run.accumulates:
        asked = {id(one) for one in run.inputs}
        for model in open_ones:
            given = _parameters(model.module)
            states.update({one: _state(given[one]) for one in asked & given.keys()})

    def ended(_: Any, raised: BaseException | None) -> None:
        for model in open_ones:
            model.backward_ended(run)
        without = [one for one in open_ones if not (one.settled or one.backward)]
        if without and raised is None:
            _note(without, run, states, heard)

    return ended


def _note(
    models: list[_Model], run: engine.Backward, states: dict[int, _State], heard: int
) -> None:
    """See which of `models` this backward gave gradients that nobody averaged."""
    if run.accumulates:
        reached = {id(one) for one in run.inputs or tensors.leaves_of(run.outputs)}
    else:
        reached = set(states)
    own = [model for model in models if reached & _parameters(model.module).keys()]
    if not own or (run.accumulates and is_penalty(run.outputs)):
        return  # a penalty has the same gradients on every rank
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    for model in own:
        model.backward = (site, "backward" if run.accumulates else "autograd.grad")
        model.before = states
        model.heard = heard


def _stepped(optimizer: Any) -> None:
    """See whether all modules that have parameters of `optimizer` averaged their gradients.

    In a program that does, this runs in each step, and at first its middle.
    """
    global _calm
    groups, models = _stepping.get(id(optimizer), _UNKNOWN)
    if groups != len(optimizer.param_groups):
        models = _with_parameters_of(optimizer)
    everywhere = True
    for model in models:
        seen = model.stats()
        if seen != model.seen:
            model.seen = seen
            model.averaged = True
        elif not model.averaged:
            everywhere = False
    if everywhere and _calm >= _needed:
        for model in models:
            model.averaged = model.paused = False
        return
    try:
        if not everywhere:
            _step(optimizer, models)
        elif models:
            _calm += 1
            if _calm >= _needed:
                engine.unsubscribe(_backward)
    finally:
        for model in models:
            model.stepped()


def _step(optimizer: Any, models: list[_Model]) -> None:
    """An optimizer has updated the parameters of modules that did not average their gradients."""
    global _needed
    if not all(model.paused for model in models):
        if _calm >= _needed:
            _needed *= _MORE
        _listen()
    if any(one.backward and not one.settled and _heard == one.heard for one in models):
        _confirm(optimizer, models)


_UNKNOWN: tuple[int, list[_Model]] = (-1, [])


def _with_parameters_of(optimizer: Any) -> list[_Model]:
    """The modules that have parameters of `optimizer`, from now on known by its id."""
    groups = optimizer.param_groups
    held = {id(p) for group in groups for p in group["params"]}
    models = [one for one in _models if held & _parameters(one.module).keys()]
    if id(optimizer) not in _stepping:
        weakref.finalize(optimizer, _stepping.pop, id(optimizer), None).atexit = False
    _stepping[id(optimizer)] = (len(groups), models)
    return models


def _confirm(optimizer: Any, models: list[_Model]) -> None:
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    averaged = {i for one in _models if one.averaged for i in _parameters(one.module)}
    for model in models:
        if model.backward is not None and not model.settled and _heard == model.heard:
            module = model.module
            mine = [i for i in _parameters(module) if i in held and i not in averaged]
            own = [held[i] for i in mine if _received(held[i], model)]
            if own and torch.distributed.is_initialized():
                _report(module, model.backward, own, len(held))


def _received(parameter: Any, model: _Model) -> bool:
    """Whether it has a gradient other than zero, which came after what was seen of it."""
    gradient = parameter.grad
    if gradient is None or model.before.get(id(parameter), ()) == _state(parameter):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return bool(gradient.is_sparse or gradient.count_nonzero())


def _report(
    module: Any, backward: tuple[callsite.Site | None, str], own: list[Any], of_all: int
) -> None:
    home = collector.innermost()
    if home is None or gg502.CODE in home.ignore | collector.allowed_now():
        return
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    wanted = {id(one) for one in own}
    named = [name for name, one in module.module.named_parameters() if id(one) in wanted]
    ranks = torch.distributed.get_world_size(module.process_group)

    def make() -> gg502.Evidence:
        about = tensors.describe(own[0])
        return gg502.Evidence(site, *backward, named, of_all, ranks, about)

    evidence = home.evidence((gg502.CODE, site and site.key), make)
    evidence.count += 1
    losses.record(own, evidence, home, site)
    if evidence.count == 1:
        collector.announce(home, [evidence])


# -- on and off ----------------------------------------------------------------------------------


_modules = Patches(
    [
        Patch(DistributedDataParallel, "__init__", _wrapping),
        Patch(DistributedDataParallel, "no_sync", _pausing),
    ]
)


@functools.cache
def _collectives() -> Patches:
    group = torch.distributed.ProcessGroup
    return Patches([Patch(group, one, _listening) for one in _METHODS if one in vars(group)])


@functools.cache
def _functional() -> Patches:
    module = sys.modules[_FUNCTIONAL]
    until_2_8 = not hasattr(module, "_resolve_group")
    name = "_resolve_group_name" if until_2_8 else "_resolve_group"
    return Patches([Patch(module, name, _resolving)])


def _listen_to_functional() -> None:
    if _modules.applied:
        _functional().apply()


def _forget_functional() -> None:
    if _FUNCTIONAL in sys.modules:
        _functional().undo()


watching.when_imported(_FUNCTIONAL, _listen_to_functional, _forget_functional)


def apply() -> None:
    """Watch the modules that are made from now on, and those that there are."""
    if _modules.applied:
        return
    _modules.apply()
    for module in _alive():
        _remember(module)
    if _FUNCTIONAL in sys.modules:
        _listen_to_functional()


def _alive() -> Iterator[Any]:
    """The modules that were made before the guard began."""
    for item in gc.get_objects():
        if issubclass(type(item), DistributedDataParallel) and hasattr(item, "reducer"):
            yield item


def undo() -> None:
    """Leave torch's own classes as they were."""
    global _needed
    _needed = _CALM
    _modules.undo()
    _collectives().undo()
    _forget_functional()
    engine.unsubscribe(_backward)
    steps.after.unsubscribe(_stepped)
    _models.clear()
    _stepping.clear()
