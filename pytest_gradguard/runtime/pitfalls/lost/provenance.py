"""Results that came back without their graph, and the backward pass that reaches them.

Each such tensor gets a hook, which torch calls when a gradient arrives, whatever started the
backward pass. All references are weak: a result lives exactly as long as the program keeps it.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import arrivals, tensors
from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch import modes as torch_modes
from pytest_gradguard.runtime.frameworks.torch.copies import digest
from pytest_gradguard.runtime.kernel import (
    calls,
    callsite,
    collector,
    locate,
    losses,
    transfer,
    watching,
)
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.subscribers import Subscribers
from pytest_gradguard.runtime.pitfalls.lost import boundary_gradients, gg103, lacking
from pytest_gradguard.runtime.pitfalls.lost.lacking import Severed, StoppedPass
from pytest_gradguard.runtime.pitfalls.modes import gg301

_PICKLED = 64
Origin = Callable[[Any, str, FrameType], Severed | None]
"""What a tensor that arrives may be, from its digest and the frame that rebuilds it."""
origins: Subscribers[Origin] = Subscribers()
"""Queried for each arriving tensor that requires grad and is no parameter."""


class _State(GuardState):
    """The results whose graphs were dropped.

    Attributes:
        severed: by id.
        retained: the ids of results whose gradient the program has asked to retain.
        pickled: results that the program has pickled itself since, by thread and digest.
    """

    def __init__(self) -> None:
        self.severed: dict[int, tuple[Reference, Severed]] = {}
        self.retained: set[int] = set()
        self.pickled: dict[tuple[int, str], Severed] = {}


_state = dropped_at_end(_State())


def remember(token: int, note: Object, tensor: Any, dropped: bool = True) -> None:
    """Remember that `tensor` had history in the worker that it was returned from.

    Args:
        token: the call.
        note: the description of the result.
        tensor: the tensor that arrived.
        dropped: its history was dropped; otherwise it came along, over copies of the arguments.
    """
    call = calls.by_token(token)
    if call is None or not watching.is_on():
        return
    if dropped and not call.within_autograd:
        calls.note_crossed(token, "GG102", note)
    if not tensors.requires_grad(tensor):
        return
    mark(tensor, Severed(call, note))


def inherit(token: int, lineage: str, leaves: dict[int, str]) -> None:
    """Look for the leaves behind a forked worker's result among those of this process."""
    call = calls.by_token(token) if lineage == LINEAGE else None
    if call is None or leaves.keys() <= call.shipped.keys():
        return
    searches = call.remembered.setdefault(_SEARCHES, [])
    if len(searches) < _MOST_SEARCHES:
        searches.append(None)
        call.remembered[INHERITED] = leaves
        _ship_inherited(call)


INHERITED = "inherited"
"""A call's key for the leaves of this process that its results have, by id."""
_SEARCHES = "searches for leaves"
_MOST_SEARCHES = 3
"""How often all objects of the process are searched for one call, or for one line."""


def _ship_inherited(call: calls.Call) -> None:
    """Treat leaves that a forked process has inherited as shipped: nothing else names them."""
    wanted = call.remembered.pop(INHERITED, None)
    if not wanted:
        return
    alive = {id(item): item for item in gc.get_objects() if id(item) in wanted}
    for identity, values in wanted.items():  # the collector keeps its objects in no order
        item = alive.get(identity)
        if not tensors.is_tensor(item) or _is_result(item, call) or digest(item) != values:
            continue
        call.ships_gradients = True
        call.remember_shipped(item, "")


def _known(tensor: Any) -> Severed | None:
    """The record of `tensor`, if it is such a result."""
    known = _state.severed.get(id(tensor))
    return known[1] if known is not None and known[0]() is tensor else None


def _is_result(tensor: Any, call: calls.Call) -> bool:
    """Whether `tensor` came back from `call`: it may match a worker's leaf by id and value."""
    known = _known(tensor)
    return known is not None and known.call is call


def mark(tensor: Any, severed: Severed) -> None:
    """Record `tensor` as a result whose graph was dropped, and watch gradients that reach it."""
    identity = id(tensor)

    def arrived(gradient: Any) -> None:
        try:
            _arrived(severed, identity)
        except Exception as error:
            fault(error)

    # Torch's pickling warns of hooks that it drops, except for marked ones.
    arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]
    with torch._C.DisableTorchFunctionSubclass():
        tensor.register_hook(arrived)
    forget = functools.partial(_forget, identity)
    _state.severed[identity] = (refer(tensor, forget), severed)
    apply()
    torch_engine.subscribe(_watched, torch_engine.Order.REPORTS)


def _forget(identity: int) -> None:
    _state.severed.pop(identity, None)
    _state.retained.discard(identity)


def apply() -> None:
    """Record, from now on, what is pickled and what arrives here."""
    patches.apply()
    arrivals.subscribe(_arrives)


def is_buried(tensor: Any) -> bool:
    """Whether `tensor` came back inside another object, such as an estimator's last loss."""
    known = _known(tensor)
    return known is not None and not known.note.plain


tensors.buried.append(is_buried)


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[StoppedPass] = []


_running = _Running()
_anywhere: list[StoppedPass] = []


def _live_calls() -> Iterable[calls.Call]:
    return {id(severed.call): severed.call for _, severed in list(_state.severed.values())}.values()


def _arrived(severed: Severed, identity: int) -> None:
    # Gradients of GPU tensors arrive in a thread of the engine, which has no user frame.
    running = _running.stack or _anywhere
    if identity in _state.retained:  # the gradient at the boundary is wanted
        return
    if running:
        if identity not in running[-1].asked:  # if requested, it is wanted, too
            running[-1].stopped.append(severed)
            running[-1].reached.append(identity)
    elif collector.innermost() is not None:
        _report([severed], StoppedPass((), _live_calls()), accumulates=True, outcome=())


def _watched(run: torch_engine.Backward) -> torch_engine.End:
    backward = StoppedPass(run.inputs, _live_calls())
    if backward.inputs and _state.severed:
        _look_through(run.outputs, backward)
    _running.stack.append(backward)
    _anywhere.append(backward)

    def ended(outcome: Any, raised: BaseException | None) -> None:
        _running.stack.remove(backward)
        _anywhere.remove(backward)
        if backward.stopped and raised is None:
            _leave_out_unwanted(run.outputs, backward)
            backward.outputs = run.outputs
            _report(backward.stopped, backward, run.accumulates, outcome)

    return ended


def _look_through(outputs: Any, backward: StoppedPass) -> None:
    """Find severed results that a gradient requested for inputs only does not arrive at.

    Such a gradient is silently partial if these inputs were shipped to the same call."""
    try:
        asked = backward.asked
        for leaf in tensors.leaves_of(outputs):
            known = _known(leaf)
            if known is None or id(leaf) in asked:
                continue
            if asked & known.call.shipped.keys():
                backward.stopped.append(known)
    except Exception as error:
        fault(error)


def _leave_out_unwanted(outputs: Any, backward: StoppedPass) -> None:
    """Leave out results of calls made with gradients off, if the pass is for other tensors.

    Such results have a graph by mistake (GG301), and nobody misses it."""
    off = {id(s.call) for s in backward.stopped if _gradients_off(s.call)}
    if off and any(id(leaf) not in _state.severed for leaf in tensors.leaves_of(outputs)):
        backward.stopped = [s for s in backward.stopped if id(s.call) not in off]


def _gradients_off(call: calls.Call) -> bool:
    asked = call.asked.get(gg301.MODES)
    return asked is not None and torch_modes.Modes(*asked).gradients_off is not None


def _was_copied(copied: Any, tensor: Any, *args: Any) -> None:
    known = _known(tensor)
    if known is not None and id(copied) not in _state.severed and tensors.requires_grad(copied):
        mark(copied, known)


def _retains(tensor: Any, *args: Any, **kwargs: Any) -> None:
    if _known(tensor) is not None:
        _state.retained.add(id(tensor))


def _is_pickled(tensor: Any, *args: Any) -> None:
    known = _known(tensor)
    if known is not None and transfer.active.transfer is None:  # pickled by the program
        values = digest(tensor)
        if values is not None:
            _state.pickled[threading.get_ident(), values] = known
        while len(_state.pickled) > _PICKLED:
            del _state.pickled[next(iter(_state.pickled))]
    boundary_gradients.pickled(tensor)


def _arrives(tensor: Any, rebuilding: FrameType) -> None:
    if isinstance(tensor, torch.nn.Parameter) or not (_state.pickled or origins.now):
        return
    values = digest(tensor) or ""
    # Workers' results arrive in other threads.
    severed = _state.pickled.get((threading.get_ident(), values))
    if severed is not None and not may_be(severed, rebuilding):
        severed = None
    for ask in origins.now:
        severed = severed or ask(tensor, values, rebuilding)
    if severed is not None:
        mark(tensor, severed)
        _ship_inherited(severed.call)


def may_be(severed: Severed, rebuilding: FrameType) -> bool:
    """Whether a tensor rebuilt with equal values can be this result.

    It cannot in another test or `guard()` block, nor if `copy.copy` rebuilds it.
    """
    at_home = severed.call.collector is collector.innermost()
    return at_home and rebuilding.f_globals.get("__name__") != "copy"


patches = Patches(
    [
        observe(torch.Tensor, "__deepcopy__", after=_was_copied),
        observe(torch.Tensor, "__reduce_ex__", before=_is_pickled),
        observe(torch.Tensor, "retain_grad", before=_retains, inherited=True),
    ]
)


def _report(stopped: list[Severed], backward: StoppedPass, accumulates: bool, outcome: Any) -> None:
    if not stopped:
        return
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    home = collector.innermost() or stopped[0].call.collector
    dropped = home.ignore | collector.allowed_now()
    stopped = [s for s in stopped if "GG103" not in dropped and "GG103" not in s.call.dropped]
    stopped = [s for s in stopped if s.certain or lacking.misses_a_gradient(s.call, backward)]
    if not stopped:
        return
    key = ("GG103", site and site.key)
    verb = "backward" if accumulates else "autograd.grad"
    evidence = home.evidence(key, lambda: gg103.Evidence(site, verb))
    assert isinstance(evidence, gg103.Evidence)
    search = evidence.count < _MOST_SEARCHES
    is_wanted = functools.cache(
        functools.partial(lacking.is_wanted, backward, _state.severed.keys(), search)
    )
    for severed in stopped:
        evidence.add(severed.note, severed.call, is_wanted)
        severed.call.explains(evidence)
    evidence.count += 1
    without, partial = lacking.gradients(
        {id(one.call): one.call for one in stopped}.values(), backward, accumulates, outcome
    )
    if evidence.count == 1:
        names = locate.names_in({**without, **partial}, frame)
        evidence.without.update(dict.fromkeys(names[identity] for identity in without))
        evidence.partial.update(dict.fromkeys(names[identity] for identity in partial))
    harmed = (tensor for tensor, _ in (*without.values(), *partial.values()))
    losses.record(harmed, evidence, home, site)
    if accumulates:
        _wait(evidence, stopped, backward, home)
    collector.announce(home, [evidence])


def _wait(
    evidence: gg103.Evidence,
    stopped: list[Severed],
    backward: StoppedPass,
    home: collector.Collector,
) -> None:
    """Withdraw this once the program is seen to pass on the gradients itself."""
    reached = [_state.severed.get(identity) for identity in backward.reached]
    without = {}
    for call in {id(severed.call): severed.call for severed in stopped}.values():
        for reference, _ in list(call.shipped.values()):
            tensor = reference()
            if tensor is not None and tensor.is_leaf and tensors.gradient_missing(tensor):
                without[id(tensor)] = tensor
    boundary_gradients.wait(
        boundary_gradients.Pass(
            [None if known is None else known[0]() for known in reached],
            without.values(),
            evidence.withdraw,
        )
    )
    home.ask_first(boundary_gradients.look)


def severed_among(references: Iterable[Reference]) -> list[Severed]:
    """The live tensors behind `references` that came back without their graph."""
    found = []
    for reference in list(references):
        tensor = reference()
        known = None if tensor is None else _known(tensor)
        if known is not None and known.certain:
            found.append(known)
    return found
