"""GG502: whether a DistributedDataParallel module averaged the gradients that an optimizer uses.

Each reducer records when it saw the gradients of a backward pass, and knows whether it still waits
for some. Once it has averaged them for a few steps, only steps are inspected, until one lacks
averaged gradients. Its reducer ignores parameters that a module got after it was wrapped.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_gradguard.runtime.frameworks.torch import engine, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.penalties import is_penalty
from pytest_gradguard.runtime.kernel import callsite, collector, losses
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.pitfalls.ddp import by_hand, divergence, gg502
from pytest_gradguard.runtime.pitfalls.ddp.models import Added, Model, State, state

_CALM = 5
"""How many averaged steps in a row end the watch on backward passes, at first.

If a step without averaged gradients then shows that the watch ended too early, it gets longer.
"""
_MORE = 4


class _State(GuardState):
    """The modules of DDP.

    Attributes:
        models: the modules.
        stepping: by the id of a live optimizer: its number of parameter groups, and the modules
            that share parameters with it.
        calm: how many steps in a row had averaged gradients.
        needed: after how many of them backward passes are no longer watched.
    """

    def __init__(self) -> None:
        self.models: list[Model] = []
        self.stepping: dict[int, tuple[int, list[Model]]] = {}
        self.calm = 0
        self.needed = _CALM


_state = dropped_at_end(_State())


def _all_parameters() -> Iterator[Any]:
    """All parameters whose gradients are to be averaged."""
    for model in _state.models[:]:
        yield from model.parameters().values()


# -- modules -------------------------------------------------------------------------------------


def _remember(module: Any, *, under_guard: bool) -> None:
    if not getattr(module, "_use_python_reducer", False):
        _state.models.append(Model(module, _forget))
        _state.stepping.clear()
        steps.after.subscribe(_stepped)
        divergence.wrapped(module, under_guard=under_guard)
        _listen()


def _forget(model: Model) -> None:
    for one in (model, model.added):
        if one in _state.models:
            _state.models.remove(one)
    _state.stepping.clear()
    if not _state.models:
        steps.after.unsubscribe(_stepped)
        engine.unsubscribe(_backward)


def _listen() -> None:
    """Watch backward passes, until enough steps had averaged gradients."""
    _state.calm = 0
    engine.subscribe(_backward)


def _wrapped(result: None, module: Any, /, *args: Any, **kwargs: Any) -> None:
    _remember(module, under_guard=True)


def _pauses(module: Any, /, *args: Any, **kwargs: Any) -> None:
    for known in _state.models:
        if known.module is module:
            known.paused = True
            user = str(caller().f_globals.get("__name__"))
            known.by_accelerate = user.partition(".")[0] == "accelerate"
    divergence.pauses(module)


# -- backward passes and steps -------------------------------------------------------------------


def _backward(run: engine.Backward) -> engine.End | None:
    _find_added()
    every = [model for model in _state.models if run.accumulates or not model.averaged]
    if not every:
        return None
    calls = by_hand.count()
    states: dict[int, State] = {}
    if not run.accumulates:
        asked = {id(one) for one in run.inputs}
        for model in every:
            given = model.parameters()
            states.update({one: state(given[one]) for one in asked & given.keys()})

    def ended(_: Any, raised: BaseException | None) -> None:
        again = [model for model in every if model.missed_backward]
        for model in every:
            model.backward_ended(run)
        without = [one for one in every if one in again or not (one.settled or one.backward)]
        if without and raised is None:
            _note(without, run, states, calls)

    return ended


def _find_added() -> None:
    """Look for parameters that modules got after they were wrapped."""
    for model in list(_state.models):
        if model.added is None and not isinstance(model, Added) and model.parameters_since():
            model.added = Added(model)
            _state.models.append(model.added)
            _state.stepping.clear()


def _note(models: list[Model], run: engine.Backward, states: dict[int, State], calls: int) -> None:
    """Find the modules that this backward pass gave gradients that nobody averaged."""
    if run.accumulates:
        reached = {id(one) for one in run.inputs or tensors.leaves_of(run.outputs)}
    else:
        reached = set(states)
    own = [model for model in models if reached & model.parameters().keys()]
    if not own or (run.accumulates and is_penalty(run.outputs)):
        return  # a penalty has the same gradients on every rank
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    for model in own:
        model.again, model.averaged = model.averaged, False
        if model.again:
            given = model.parameters()
            states = {one: state(given[one]) for one in given.keys() - reached}
        model.backward = (site, "backward" if run.accumulates else "autograd.grad")
        model.before = states
        model.calls = calls


def _stepped(optimizer: Any) -> None:
    """Check whether all modules with parameters of `optimizer` averaged their gradients.

    It runs in each step, so the usual case, in which they did, comes first.
    """
    groups, models = _state.stepping.get(id(optimizer), _UNKNOWN)
    if groups != len(optimizer.param_groups):
        models = _with_parameters_of(optimizer)
    everywhere = True
    for model in models:
        if not model.look():
            everywhere = False
    if everywhere and _state.calm >= _state.needed:
        for model in models:
            model.averaged = model.paused = False
        return
    try:
        if not everywhere:
            _step(optimizer, models)
        elif models:
            _state.calm += 1
            if _state.calm >= _state.needed:
                engine.unsubscribe(_backward)
    finally:
        for model in models:
            model.stepped()


def _step(optimizer: Any, models: list[Model]) -> None:
    """Handle a step on parameters of modules that did not average their gradients."""
    if any(model.ever or not model.paused for model in models):
        if _state.calm >= _state.needed:
            _state.needed *= _MORE
        _listen()
    if any(one.backward and not one.settled and by_hand.count() == one.calls for one in models):
        _confirm(optimizer, models)
    for model in models:
        if model.stepped_alone():
            held = {id(p): p for p in steps.parameters_of(optimizer)}
            own = [held[i] for i in model.parameters() if i in held and _received(held[i], model)]
            if own and torch.distributed.get_world_size(model.module.process_group) > 1:
                _report(model, own, len(held))


_UNKNOWN: tuple[int, list[Model]] = (-1, [])


def _with_parameters_of(optimizer: Any) -> list[Model]:
    """The modules with parameters of `optimizer`, cached by its id."""
    _find_added()
    groups = optimizer.param_groups
    held = {id(p) for group in groups for p in group["params"]}
    models = [one for one in _state.models if held & one.parameters().keys()]
    if id(optimizer) not in _state.stepping:
        weakref.finalize(optimizer, _state.stepping.pop, id(optimizer), None).atexit = False
    _state.stepping[id(optimizer)] = (len(groups), models)
    return models


def _confirm(optimizer: Any, models: list[Model]) -> None:
    held = {id(p): p for p in steps.parameters_of(optimizer)}
    averaged = {i for one in _state.models if one.averaged for i in one.parameters()}
    found: dict[int, tuple[Model, list[Any]]] = {}
    for model in models:
        if model.backward is not None and not model.settled and by_hand.count() == model.calls:
            mine = [i for i in model.parameters() if i in held and i not in averaged]
            own = [held[i] for i in mine if _received(held[i], model)]
            if own and torch.distributed.is_initialized():
                _, others = found.get(id(model.module), (model, []))
                found[id(model.module)] = model, others + own  # later parameters are the cause
    for model, own in found.values():
        _report(model, own, len(held))


def _received(parameter: Any, model: Model) -> bool:
    """Whether `parameter` got a gradient other than zero since the last record."""
    gradient = parameter.grad
    if gradient is None or model.before.get(id(parameter), ()) == state(parameter):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return bool(gradient.is_sparse or gradient.count_nonzero())


def _report(model: Model, own: list[Any], of_all: int) -> None:
    home = collector.innermost()
    if home is None or gg502.CODE in home.ignore | collector.allowed_now():
        return
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    backward, verb = model.backward or (None, "backward")
    names = {id(one): name for name, one in model.module.module.named_parameters()}
    wanted = {id(one) for one in own}
    named = [name for one, name in names.items() if one in wanted]
    ranks = torch.distributed.get_world_size(model.module.process_group)

    def make() -> gg502.Evidence:
        about = tensors.describe(own[0])
        cause = model.cause(names) if model.backward else gg502.paused(model.by_accelerate)
        return gg502.Evidence(site, backward, verb, cause, named, of_all, ranks, about)

    evidence = home.evidence((gg502.CODE, site and site.key), make)
    assert isinstance(evidence, gg502.Evidence)
    evidence.count += 1
    gg502.found(model.module, evidence)
    if model.backward is None:
        evidence.still_holds = model.is_alone
        return  # the program may average the parameters later
    losses.record(own, evidence, home, site)
    if model.waits:
        gg502.may_fail(model.module, evidence)
    elif evidence.count == 1:
        collector.announce(home, [evidence])


# -- on and off ----------------------------------------------------------------------------------

_modules = Patches(
    [
        observe(DistributedDataParallel, "__init__", after=_wrapped),
        observe(DistributedDataParallel, "no_sync", before=_pauses),
    ]
)


def apply() -> None:
    """Watch existing modules, and the modules created from now on."""
    if _modules.applied:
        return
    _modules.apply()
    by_hand.apply(_all_parameters)
    for module in _alive():
        _remember(module, under_guard=False)


def _alive() -> Iterator[Any]:
    """The modules that were made before the guard began."""
    for item in gc.get_objects():
        if issubclass(type(item), DistributedDataParallel) and hasattr(item, "reducer"):
            yield item
