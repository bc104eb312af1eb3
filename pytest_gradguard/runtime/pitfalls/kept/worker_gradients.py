"""GG106: gradients that workers kept, confirmed by an optimizer that steps without them.

A worker reports the copies whose gradients do not leave it. From then on, until the guard ends, the
steps of torch's optimizers are checked, and what else gives or clears gradients here. In a single
process the task would have left its gradient in `.grad`: a gradient that this process then clears
itself would be gone there, too, and is no loss.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch import gradient_reads, steps, tensors
from pytest_gradguard.runtime.frameworks.torch.copies import (
    GradientState,
    all_zero,
    digest,
    gradient_state,
)
from pytest_gradguard.runtime.frameworks.torch.penalties import is_penalty
from pytest_gradguard.runtime.kernel import calls, callsite, collector, locate
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch.reporting import receive
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.pitfalls.kept import gg106, steps_by_hand, used_gradients
from pytest_gradguard.runtime.pitfalls.kept.gg106 import KeptGradients, Outcome, State
from pytest_gradguard.runtime.pitfalls.kept.hand_forks import FORKED
from pytest_gradguard.runtime.pitfalls.lost import pickled_leaves


class _Waiting:
    """A tensor of this process whose copy's gradient a worker has kept.

    Attributes:
        call, left: the call of the task that kept the gradient, and what that left.
        sent_by: the call that shipped it, which may be an earlier one; None: the program itself.
        cleared: the task has cleared it again.
        stepped_with: a step had used its gradient before the call.
        settled: nothing more needs to be reported on it.
    """

    def __init__(
        self,
        reference: Callable[[], Any],
        call: Call,
        sent_by: Call | None,
        left: KeptGradients,
        values: str,
        gradient: GradientState | None,
        stepped_with: bool,
    ) -> None:
        self._reference = reference
        self.call = call
        self.sent_by = sent_by
        self.left = left
        self.cleared = left.copies.get(values, False)
        self.stepped_with = stepped_with
        self.settled = False
        self._values = values
        self._gradient = gradient
        self._version: tuple[int, int] | None = None
        """In place of the values: the tensor's version after the last step."""
        self._others: set[bool] = set()

    @property
    def tensor(self) -> Any:
        """The tensor, or None if it no longer exists."""
        return self._reference()

    def before_step(self) -> None:
        """Before an optimizer's step: new values mean that the tensor was updated otherwise."""
        if not self.settled and self._is_looked_at and self._is_written:
            self.settled = True

    @property
    def _is_looked_at(self) -> bool:
        """Whether its values matter: reading them from a GPU waits for all pending work."""
        return not self.tensor.is_cuda or self.state is not None

    @property
    def _is_written(self) -> bool:
        """Whether its values have changed since the last step."""
        if self._version is not None:
            return self._version != _version(self.tensor)
        return digest(self.tensor) != self._values

    def after_step(self) -> None:
        """Record its values after an optimizer's step, which may have changed them."""
        tensor = self.tensor
        if not self.settled:
            if self._is_looked_at:
                self._values, self._version = digest(tensor) or self._values, None
            else:
                self._version = _version(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            gradient = tensor.grad
        if gradient is None:
            _state.used.pop(id(tensor), None)
        else:
            _state.used[id(tensor)] = self._reference, refer(gradient), gradient_state(tensor)

    def backward_ended(self, tensor: Any, before: Any, penalty: bool) -> None:
        """Record a gradient from a backward pass in this process.

        Args:
            tensor: the tensor, which the pass may have been the last to hold.
            before: the state of the gradient before it.
            penalty: it began at a penalty on parameters.
        """
        if gradient_state(tensor) != before:
            self._others.add(penalty)

    @property
    def state(self) -> State | None:
        """What an optimizer has instead of the gradient that was left in the worker."""
        if self.settled:
            return None
        gradient = gradient_state(self.tensor)
        if gradient is None:
            return None if self._gradient else State.MISSING  # or it was cleared here since
        if self._others:  # gradients of local data may be all that is wanted
            return State.PENALTY if all(self._others) else None
        if gradient != self._gradient:
            return None  # the program has set it, or made it zero
        is_used = self.stepped_with or gradient == self._used
        if self.left.clears_gradients and not is_used:
            return None  # the gradient that the task replaced was not for this step
        if all_zero(self.tensor.grad):
            return State.ZERO
        return State.STALE if is_used and not self.left.for_inputs else None

    @property
    def _used(self) -> GradientState | None:
        """The gradient that a step used last, if it is still there and not a new one at its
        address."""
        reference, used, state = _state.used.get(id(self.tensor), (None, None, None))
        if reference is None or used is None or reference() is not self.tensor:
            return None
        with torch._C.DisableTorchFunctionSubclass():
            return state if used() is self.tensor.grad else None


class _State(GuardState):
    """The reports of processes on gradients, by the ids of tensors.

    Attributes:
        waiting: tensors whose gradient may be missed.
        used: tensors that were waited for, with the gradient of their last step and its state.
        inherited: tensors inherited by a forked process, with what it reported on them.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, _Waiting] = {}
        self.used: dict[int, tuple[Callable[[], Any], Reference, GradientState | None]] = {}
        self.inherited: dict[int, tuple[Call, KeptGradients, str, GradientState | None]] = {}


_state = dropped_at_end(_State())


def remember(call: Call, left: KeptGradients, *, running: bool = False) -> None:
    """Record the gradients that a worker of `call` has left behind.

    Args:
        call: the call.
        left: the worker's report.
        running: the worker goes on: a tensor's current gradient may come from elsewhere.
    """
    for identity, known in list(_state.waiting.items()):
        if known.tensor is None:
            del _state.waiting[identity]
    for identity, (reference, *_) in list(_state.used.items()):
        if reference() is None:  # the id may be another's by now
            del _state.used[identity]
    stepped_with = used_gradients.ids()
    if left.lineage == LINEAGE:
        for identity, (inherited, gradient) in left.inherited.items():
            if gradient is None or not running:
                _state.inherited[identity] = (call, left, inherited, gradient)
    for identity, reference, sent_by in _sent(call, left):
        tensor = reference()
        if tensor is None or not tensor.is_leaf:
            continue
        earlier = _state.waiting.get(identity)
        if earlier is not None and earlier.call is call and earlier.tensor is tensor:
            continue
        values = digest(tensor)
        if values is not None and (left.direct or values in left.copies):
            state = gradient_state(tensor)
            if state is None or not running:
                about = (reference, call, sent_by, left, values, state)
                _state.waiting[identity] = _Waiting(*about, identity in stepped_with)
    if _state.waiting or _state.inherited:
        listen()


def _shipped(call: Call) -> list[tuple[int, Reference, Call | None]]:
    """The tensors shipped to the workers of `call`, by its tasks, their initializer or earlier
    calls: ids, references and calls."""
    found = {
        identity: (reference, call.shipped_before.get(identity, call))
        for identity, (reference, _) in call.shipped.items()
    }
    workers = () if call.workers is None else call.workers()
    for before in [*call.sources, *map(calls.initial.get, workers)]:
        if before is not None:
            shipped = before.shipped.items()
            found.update((identity, (one, before)) for identity, (one, _) in shipped)
    return [(identity, *sent) for identity, sent in found.items()]


def _sent(call: Call, left: KeptGradients) -> list[tuple[int, Reference, Call | None]]:
    """The leaves that `call` shipped, and those that the program pickled itself, for a pipe, a
    queue or a file: ids, references and the call that sent them, None for the latter."""
    shipped = _shipped(call)
    known = {identity for identity, _, _ in shipped}
    leaves = pickled_leaves.of(left.copies.keys())
    return [*shipped, *((id(one), refer(one), None) for one in leaves if id(one) not in known)]


def listen() -> None:
    """Watch optimizers and backward passes from now on."""
    steps.before.subscribe(_stepping)
    steps.after.subscribe(_stepped)
    _patches.apply()
    torch_engine.subscribe(_backward)
    gradient_reads.subscribe(_read)


def replace(call: Call, outcome: Outcome, earlier: Outcome | None, *, running: bool) -> None:
    """Record what has become of the gradients in a process that `call` has started.

    Args:
        call, outcome: the call, and what has become of them.
        earlier: the process's earlier report, which is replaced.
        running: the process goes on.
    """
    returned = 0
    if earlier is not None:
        returned = len(earlier.returned)
        for identity, known in list(_state.waiting.items()):
            if known.left is earlier.left:
                del _state.waiting[identity]
        for identity, (_, known_left, _, _) in list(_state.inherited.items()):
            if known_left is earlier.left:
                del _state.inherited[identity]
    call.answer(len(outcome.returned) - returned)
    if outcome.left is not None:
        remember(call, outcome.left, running=running)


def module_returned(call: Call, sent: Any, task: Any, module: Any) -> None:
    """Settle a module of which a copy has come back: the program may use the copy instead."""
    for known in _known(sent.parameters()):
        known.settled = True


def find_kept(tensor: Any) -> tuple[Call, KeptGradients] | None:
    """The call that `tensor` was shipped to, and the task that left its gradient there."""
    for known in _known([tensor]):
        return known.call, known.left
    return None


def _known(parameters: Iterable[Any]) -> list[_Waiting]:
    """The waiting tensors among these parameters."""
    receive()
    found = []
    for parameter in parameters:
        if id(parameter) in _state.inherited:
            _recognize(parameter)
        known = _state.waiting.get(id(parameter))
        if known is not None and known.tensor is parameter:
            found.append(known)
    return found


def _recognize(parameter: Any) -> None:
    """Check whether `parameter` is one that a forked process inherited: ids may be reused."""
    call, left, values, state = _state.inherited.pop(id(parameter))
    earlier = _state.waiting.get(id(parameter))
    if earlier is not None and earlier.call is call and earlier.tensor is parameter:
        return
    if digest(parameter) == values:
        call.remember_shipped(parameter, "")
        reference, _ = call.shipped[id(parameter)]
        stepped_with = id(parameter) in used_gradients.ids()
        about = (reference, call, call, left, values, state)
        _state.waiting[id(parameter)] = _Waiting(*about, stepped_with)


# -- what happens to gradients here --------------------------------------------------------------


def _backward(backward: torch_engine.Backward) -> torch_engine.End | None:
    receive()
    if _state.inherited:
        _known(tensors.leaves_of(backward.outputs))
    if not backward.accumulates:
        return None
    open_ones = [(one, one.tensor) for one in _state.waiting.values() if not one.settled]
    before = [(*one, gradient_state(one[1])) for one in open_ones if one[1] is not None]
    penalty = bool(before) and is_penalty(backward.outputs)

    def ended(_: Any, raised: BaseException | None) -> None:
        if raised is None:
            for one, tensor, state in before:
                one.backward_ended(tensor, state, penalty)

    return ended


def _cleared(owner: Any, *args: Any, **kwargs: Any) -> None:
    for known in _known(steps.parameters_of(owner)):
        known.settled = True


_patches = Patches(
    [
        observe(torch.nn.Module, "zero_grad", before=_cleared),
        observe(torch.optim.Optimizer, "zero_grad", before=_cleared),
    ]
)


def _version(tensor: Any) -> tuple[int, int]:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data_ptr(), tensor._version


# -- the step ------------------------------------------------------------------------------------


def _stepping(optimizer: Any) -> None:
    for known in _known(steps.parameters_of(optimizer)):
        known.before_step()


def _stepped(optimizer: Any) -> None:
    known = _known(steps.parameters_of(optimizer))
    if known:
        _confirm(known, [p for p in steps.parameters_of(optimizer) if tensors.requires_grad(p)])
    for one in known:
        one.after_step()


def _read(parameter: Any, frame: FrameType) -> None:
    """Check whether the program steps by hand with the gradient that it reads."""
    if not callsite.is_users(frame):
        return
    for one in _known([parameter]):
        one.before_step()
        if one.state is not None and steps_by_hand.updates(frame):
            known = [other for other in list(_state.waiting.values()) if other.left is one.left]
            known = [other for other in known if other.tensor is not None]
            _confirm(known, [other.tensor for other in known], by_hand=True)
            for other in known:  # the next reads are for the same update
                other.settled = True


def _confirm(known: list[_Waiting], parameters: list[Any], by_hand: bool = False) -> None:
    states = {id(one.tensor): (one, state) for one in known if (state := one.state) is not None}
    nothing = all(
        tensors.gradient_missing(p) or states.get(id(p), (None, None))[1] is State.ZERO
        for p in parameters
    )
    if not nothing and any(one.call.kind is FORKED for one, _ in states.values()):
        return  # what such a process sends is unknown
    if not nothing:  # in one process, a gradient that the task cleared would be missing, too
        states = {i: (one, state) for i, (one, state) in states.items() if not one.cleared}
    if not states:
        return
    first = next(iter(states.values()))[0]
    call, sent_by = first.call, first.sent_by
    sent = None if sent_by is None else sent_by.site
    home = collector.innermost() or call.collector
    if "GG106" in call.dropped | home.ignore | collector.allowed_now():
        return
    frame = callsite.user_frame()
    site = None if frame is None else callsite.site_of(frame)
    if not nothing and site is not None and call.site is not None and _clears(site, call.site):
        return
    evidence = home.evidence(
        ("GG106", site and site.key), lambda: gg106.Evidence(site, call, first.left, sent, by_hand)
    )
    assert isinstance(evidence, gg106.Evidence)
    if not evidence.count:
        wanted = {id(one.tensor): (one.tensor, "") for one, _ in states.values()}
        evidence.describe(
            [state for _, state in states.values()],
            tensors.describe(first.tensor),
            list(locate.names_in(wanted, frame).values()),
            len(parameters),
            nothing,
        )
    evidence.count += 1
    call.explains(evidence)
    if evidence.count == 1:
        collector.announce(home, [evidence])


def _clears(step: callsite.Site, call: callsite.Site) -> bool:
    """Whether the program may set a `.grad` to None by hand between the call and the step."""
    first = call.line if step.code is call.code else 0
    starts = dict(dis.findlinestarts(step.code))
    between = cleared = False
    for instruction in dis.get_instructions(step.code):
        line = starts.get(instruction.offset)
        if line is not None:
            between = first < line < step.line
        if instruction.opname == "LOAD_CONST":
            cleared = between and instruction.argval is None
        elif instruction.opname == "STORE_ATTR":
            if cleared and instruction.argval == "grad":
                return True
            cleared = False
    return False
