"""GG112: modules that came back from workers, and the optimizers that hold the originals.

If such a module gets gradients here, and an optimizer steps the original parameters, which get
none, the program uses one model and steps the other. Not reported if any optimizer holds the
returned parameters, or if they are changed by other means.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.frameworks.torch.copies import GradientState, all_zero, gradient_state
from pytest_gradguard.runtime.kernel import callsite, collector
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls.modules import gg112


class _Original(NamedTuple):
    """A parameter whose copy came back, and its gradient at that time."""

    reference: Reference
    gradient: GradientState | None

    @property
    def lacks_gradient(self) -> bool:
        """Whether it is alive, and has got no gradient since."""
        tensor = self.reference()
        if tensor is None:
            return False
        state = gradient_state(tensor)
        return state is None or state == self.gradient or all_zero(tensor.grad)


class _Twin:
    """Parameters that came back as copies of others.

    Args:
        call: the call that they came from.
        task: the function that returned them.
        sent: the module that was sent, or the part of it that came back.
        module: the returned module.

    Attributes:
        originals: the original parameters, with their names in `module`.
        settled: an optimizer holds the copies, or they have changed otherwise.
    """

    def __init__(self, call: Call, task: Task, sent: Any, module: Any) -> None:
        self.call = call
        self.task = task
        self.settled = False
        self.originals: list[tuple[str, _Original]] = []
        for name, one in sent.named_parameters():
            self.originals.append((name, _Original(refer(one), gradient_state(one))))
            earlier, known = _state.by_parameter.get(id(one), (None, ""))
            if earlier is not None and earlier.parameter(known) is one:  # it had come back itself
                self.originals += [(name, old) for n, old in earlier.originals if n == known]
        self._sent = refer(sent)
        self._copies: dict[str, Reference] = {}
        self._versions: dict[int, int] = {}
        trained: list[Reference] = []
        for name, one in module.named_parameters():
            reference = self._copies[name] = refer(one, functools.partial(self._freed, id(one)))
            self._versions[id(one)] = one._version
            _state.by_parameter[id(one)] = (self, name)
            if tensors.requires_grad(one):
                trained.append(reference)
        self._few = trained[:_FEW] + trained[-_FEW:]

    def _freed(self, identity: int) -> None:
        _state.by_parameter.pop(identity, None)
        self._versions.pop(identity, None)
        if not self._versions:
            _state.twins.discard(self)

    def parameter(self, name: str) -> Any:
        """The returned parameter of that name, or None if it no longer exists."""
        reference = self._copies.get(name)
        return None if reference is None else reference()

    def are_in(self, held: set[int]) -> bool:
        """Whether any of the parameters is among those with the ids `held`."""
        return not held.isdisjoint(self._versions)

    def has_gradient(self) -> bool:
        """Whether the first or last parameters have a gradient.

        Most returned ones have none, and a program may keep many of them."""
        few = [reference() for reference in self._few]
        return any(one is not None and not tensors.gradient_missing(one) for one in few)

    def has_changed(self) -> bool:
        """Whether a parameter was changed in place since it came back."""
        alive = [reference() for reference in self._copies.values()]
        return any(
            one._version != self._versions.get(id(one), one._version)
            for one in alive
            if one is not None
        )

    def is_part_of_what_was_sent(self, parameter: Any) -> bool:
        """Whether the program has put `parameter` into the module that was sent."""
        sent = self._sent()
        return sent is not None and any(one is parameter for one in sent.parameters())


_FEW = 4


class _State(GuardState):
    """The modules that came back, and their parameters by id."""

    def __init__(self) -> None:
        self.twins: set[_Twin] = set()
        self.by_parameter: dict[int, tuple[_Twin, str]] = {}


_state = dropped_at_end(_State())


def remember(call: Call, sent: Any, task: Task, module: Any) -> None:
    """Remember that `module` came back.

    Args:
        call: the call that it comes from.
        sent: the original: the module that was sent, or a part of it.
        task: the function that returns it.
        module: the returned module.
    """
    if "GG112" in call.dropped:
        return
    _state.twins.add(_Twin(call, task, sent, module))
    steps.after.subscribe(_stepped)
    _patches.apply()


# -- who holds the parameters --------------------------------------------------------------------


def _held(optimizer: Any) -> set[int]:
    return set(map(id, steps.parameters_of(optimizer)))


def _note_holder(held: set[int]) -> None:
    """Settle the returned parameters that an optimizer holds."""
    for twin in list(_state.twins):
        twin.settled = twin.settled or twin.are_in(held)


def _added(result: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    _note_holder(_held(optimizer))


_patches = Patches([observe(torch.optim.Optimizer, "add_param_group", after=_added)])


# -- the step ------------------------------------------------------------------------------------


def _stepped(optimizer: Any) -> None:
    held = _held(optimizer)
    _note_holder(held)
    for twin in list(_state.twins):
        if twin.settled or not twin.has_gradient():
            continue
        replaced = _replaced(twin, held)
        if replaced and twin.has_changed():
            twin.settled = True
        elif replaced:
            _report(twin, replaced, len(held))


def _replaced(twin: _Twin, held: set[int]) -> dict[str, Any]:
    """The copies that have a gradient while the optimizer's originals lack one, by name."""
    stepped = [(n, known) for n, known in twin.originals if id(known.reference()) in held]
    replaced = {
        name: twin.parameter(name)
        for name, known in stepped
        if known.lacks_gradient and _has_gradient(twin.parameter(name))
    }
    if all(known.lacks_gradient for _, known in stepped):
        return replaced
    # The original is trained, too: a copy is in use if it is now a part of the original.
    return {n: one for n, one in replaced.items() if twin.is_part_of_what_was_sent(one)}


def _has_gradient(tensor: Any) -> bool:
    gradient = None if tensor is None else tensors.gradient(tensor)
    return gradient is not None and tensors.readable(gradient) and not all_zero(gradient)


def _report(twin: _Twin, replaced: dict[str, Any], parameters: int) -> None:
    call = twin.call
    home = collector.innermost() or call.collector
    if "GG112" in call.dropped | home.ignore | collector.allowed_now():
        return
    site = callsite.user_site()
    evidence = home.evidence(
        ("GG112", site and site.key), lambda: gg112.Evidence(site, call, twin.task)
    )
    assert isinstance(evidence, gg112.Evidence)
    if not evidence.count:
        first = tensors.describe(next(iter(replaced.values())))
        evidence.describe(list(replaced), first, parameters)
    evidence.count += 1
    call.explains(evidence)
    if evidence.count == 1:
        collector.announce(home, [evidence])
